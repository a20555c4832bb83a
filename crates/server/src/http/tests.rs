use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};

use super::routes::ROUTES;
use super::*;
use crate::readiness::{Phase, Readiness};

#[test]
fn the_openapi_document_covers_every_route_and_no_other() {
    let document: serde_json::Value = serde_json::from_str(&openapi_text()).unwrap();
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            described.insert((method.clone(), path.clone()));
        }
    }
    let routed: BTreeSet<(String, String)> = ROUTES.iter().map(|(m, p)| ((*m).into(), (*p).into())).collect();
    assert_eq!(described, routed);
}

#[test]
fn every_operation_says_what_it_does_and_what_it_answers() {
    let document: serde_json::Value = serde_json::from_str(&openapi_text()).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(operation["summary"].as_str().is_some_and(|s| s.len() > 10), "{method} {path} has a summary");
            assert!(!operation["responses"].as_object().unwrap().is_empty(), "{method} {path} has responses");
        }
    }
}

/// A server of a node that never gets beyond its start.
fn starting() -> (HttpServer, Arc<Readiness>) {
    let readiness = Arc::new(Readiness::default());
    readiness.enter(Phase::Starting("attaching the arena"));
    let state = Arc::new(HttpState { readiness: readiness.clone(), node: OnceLock::new() });
    (HttpServer::start("127.0.0.1:0", state).unwrap(), readiness)
}

fn request(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_node_that_starts_is_alive_and_not_ready_and_says_why() {
    let (server, readiness) = starting();
    assert!(request(server.address, "GET /healthz").starts_with("HTTP/1.1 200"));
    let answer = request(server.address, "GET /readyz");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("starting: attaching the arena"), "{answer}");
    for path in ["/metrics", "/v1/status", "/v1/streams"] {
        let answer = request(server.address, &format!("GET {path}"));
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"next_step\""), "{answer}");
    }
    readiness.enter(Phase::Serving);
    assert!(request(server.address, "GET /readyz").starts_with("HTTP/1.1 200"));
    server.stop();
}

#[test]
fn wrong_paths_and_methods_get_json_that_helps() {
    let (server, _) = starting();
    let answer = request(server.address, "GET /v1/stream");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("/openapi.json lists every path"), "{answer}");
    let answer = request(server.address, "DELETE /healthz");
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("\"error\""), "{answer}");
    assert!(request(server.address, "GET /openapi.json").contains("\"openapi\""));
    server.stop();
}
