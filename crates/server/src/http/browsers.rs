//! What no web page may do. A browser sends what a page asks for to any address, that of its own machine too: that only this machine can reach a
//! loopback address keeps out no page that somebody looks at here. A browser says which page asks, and under which name.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{Method, header};

use super::error::HttpError;

/// Where a browser says how far the page is from what it asks for.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Why a request that may be a page's is refused: it changes something, or a name that is no loopback address's leads to this one, as that of
/// a page does whose owner lets it lead here (DNS rebinding). `loopback`: the listener has such an address, and by this name it was set, which
/// is no page's.
pub(super) fn refusal(request: &Request, loopback: Option<&str>) -> Option<HttpError> {
    let headers = request.headers();
    let is_change = ![Method::GET, Method::HEAD].contains(request.method());
    if is_change {
        if headers.contains_key(header::ORIGIN) {
            return Some(HttpError::of_page("Origin"));
        }
        let is_other = |site: &[u8]| [&b"cross-site"[..], b"same-site"].contains(&site);
        if headers.get_all(SEC_FETCH_SITE).iter().any(|site| is_other(site.as_bytes())) {
            return Some(HttpError::of_page("Sec-Fetch-Site"));
        }
    }
    let own_name = loopback?;
    if !is_change && !request.uri().path().starts_with("/v1/") {
        return None;
    }
    let asked = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.as_bytes());
    let other = asked.into_iter().chain(hosts).find(|host| !is_this_machine(host, own_name))?;
    Some(HttpError::of_other_host(&String::from_utf8_lossy(other)))
}

/// The name, or the address, in a `HOST:PORT`.
pub(super) fn name_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(name, _)| name)
}

/// Whether only this machine can be meant, at any port. `own_name`: what it is called too.
fn is_this_machine(host: &[u8], own_name: &str) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_own = || ["localhost", own_name].iter().any(|own| name.eq_ignore_ascii_case(own));
    address.map_or_else(|_| is_own(), |address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_this_machine_alone() {
        for host in ["localhost", "LocalHost:7071", "127.0.0.1", "127.9.9.9:80", "[::1]:7071", "[::ffff:127.0.0.1]"] {
            assert!(is_this_machine(host.as_bytes(), "127.0.0.1"), "{host}");
        }
        let others =
            ["", "evil.example", "localhost.evil.example:7071", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:1"];
        for host in others.iter().chain(&["127.0.0.1@evil.example", "0.0.0.0:7071", "\u{e4}"]) {
            assert!(!is_this_machine(host.as_bytes(), "127.0.0.1"), "{host}");
        }
    }

    #[test]
    fn a_loopback_address_may_be_asked_under_the_name_that_it_was_set_by() {
        let own = name_of("node-1.example:7071");
        assert_eq!((own, name_of("[::1]:7071")), ("node-1.example", "[::1]"));
        let refused = |head: &[(&str, &str)], method: Method| {
            let mut request = axum::http::Request::builder().method(method).uri("/v1/streams");
            for (name, value) in head {
                request = request.header(*name, *value);
            }
            let request = request.body(axum::body::Body::empty()).unwrap();
            refusal(&request, Some(own)).is_some()
        };
        for method in [Method::GET, Method::DELETE] {
            for host in ["node-1.example", "Node-1.Example:7071", "localhost:7071", "127.0.1.1"] {
                assert!(!refused(&[("host", host)], method.clone()), "{host}");
            }
            for host in ["node-2.example", "node-1.example.evil.example:7071", "node-1", "10.0.0.1"] {
                assert!(refused(&[("host", host)], method.clone()), "{host}");
            }
        }
        assert!(refused(&[("host", "node-1.example"), ("origin", "http://node-1.example")], Method::DELETE));
    }
}
