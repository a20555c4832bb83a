//! Health, readiness and metrics: what orchestrators and monitoring ask.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use kera_format::StreamId;
use kera_protocol::{GetStream, ListApplications};

use super::error::HttpError;
use super::inside::Inside;
use super::routes::Door;
use crate::api::ErrorJson;
use crate::metrics::{ApplicationNumbers, LABELLED_MAX};

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "It is", body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the node should get clients.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "It should", body = String),
    (status = 503, description = "It should not, and why: it starts, it stops, or its disk is full", body = ErrorJson),
))]
pub(super) async fn readyz(State(door): State<Door>) -> Result<&'static str, HttpError> {
    match door.state.readiness.not_ready() {
        None => Ok("ready\n"),
        Some(reason) => Err(HttpError::not_ready(reason)),
    }
}

/// Numbers for Prometheus; docs/metrics.md explains each.
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, description = "All numbers in the OpenMetrics text format", body = String),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn metrics(State(door): State<Door>) -> Result<Response, HttpError> {
    let node = door.node()?;
    let applications = applications(&door.inside()?).await?;
    match node.metrics.text(applications) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
        }
        Err(error) => {
            tracing::error!(%error, "metrics could not be written");
            Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response())
        }
    }
}

/// The lag of applications, which only the broker's sessions tell.
async fn applications(inside: &Inside) -> Result<Vec<ApplicationNumbers>, HttpError> {
    let mut names: HashMap<StreamId, String> = HashMap::new();
    let mut numbers = Vec::new();
    for one in inside.call(&ListApplications { stream: None }).await?.applications.into_iter().take(LABELLED_MAX) {
        let stream = match names.entry(one.stream) {
            Entry::Occupied(known) => known.get().clone(),
            // A stream that was deleted a moment ago takes its applications with it.
            Entry::Vacant(new) => match inside.call(&GetStream { stream: one.stream.into() }).await {
                Ok(info) => new.insert(info.name).clone(),
                Err(_) => continue,
            },
        };
        numbers.push(ApplicationNumbers { name: one.name, stream, members: one.members.into(), lag: one.lag });
    }
    Ok(numbers)
}
