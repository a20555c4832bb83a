//! Health, readiness and metrics: what orchestrators and monitoring ask.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::HttpError;
use super::routes::Door;
use crate::api::ErrorJson;

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
    match door.node()?.metrics.text() {
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
