//! Errors of the HTTP door, always as JSON.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kera_protocol::Status;

use super::inside::Refusal;
use crate::api::ErrorJson;

/// A response that says what was wrong.
#[derive(Debug)]
pub(super) struct HttpError {
    pub(super) code: StatusCode,
    pub(super) body: ErrorJson,
}

impl HttpError {
    /// The request is wrong in one field.
    pub(super) fn field(field: &str, error: impl Into<String>, next_step: &str) -> HttpError {
        let body =
            ErrorJson { error: error.into(), field: Some(field.into()), limit: None, next_step: next_step.into() };
        HttpError { code: StatusCode::BAD_REQUEST, body }
    }

    /// The node is not far enough.
    pub(super) fn not_ready(reason: String) -> HttpError {
        let body = ErrorJson { error: reason, next_step: "try again in a moment".into(), ..ErrorJson::default() };
        HttpError { code: StatusCode::SERVICE_UNAVAILABLE, body }
    }

    /// Nothing is at this path.
    pub(super) fn no_such_path(path: &str) -> HttpError {
        let body = ErrorJson {
            error: format!("there is nothing at {path}"),
            next_step: "/openapi.json lists every path".into(),
            ..ErrorJson::default()
        };
        HttpError { code: StatusCode::NOT_FOUND, body }
    }

    /// The path does not know the method.
    pub(super) fn no_such_method() -> HttpError {
        let body = ErrorJson {
            error: "this path does not know the method".into(),
            next_step: "/openapi.json lists the methods of every path".into(),
            ..ErrorJson::default()
        };
        HttpError { code: StatusCode::METHOD_NOT_ALLOWED, body }
    }
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> HttpError {
        use Status::{
            ApplicationActive, DiskFull, InvalidArgument, InvalidName, InvalidOptions, LimitReached, Malformed,
            NotReady, NotSupported, Overloaded, ShuttingDown, StreamExists, Timeout, UnknownApplication, UnknownStream,
            UnknownStreamlet,
        };
        let code = match refusal.status {
            UnknownStream | UnknownStreamlet | UnknownApplication => StatusCode::NOT_FOUND,
            StreamExists | ApplicationActive => StatusCode::CONFLICT,
            InvalidName | InvalidOptions | InvalidArgument | Malformed => StatusCode::BAD_REQUEST,
            LimitReached => StatusCode::TOO_MANY_REQUESTS,
            NotSupported => StatusCode::NOT_IMPLEMENTED,
            NotReady | ShuttingDown | Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            DiskFull => StatusCode::INSUFFICIENT_STORAGE,
            Timeout => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let field = match refusal.status {
            InvalidName | StreamExists => Some("name"),
            InvalidOptions => Some("options"),
            UnknownStream => Some("stream"),
            UnknownApplication | ApplicationActive => Some("application"),
            _ => None,
        };
        let limit = refusal.message.split_once("the limit is ").map(|(_, rest)| {
            let end = rest.find([';', ',', ' ', ')']).unwrap_or(rest.len());
            rest[..end].trim_end_matches('.').to_owned()
        });
        let body = ErrorJson {
            error: refusal.message,
            field: field.map(String::from),
            limit,
            next_step: refusal.status.hint().into(),
        };
        HttpError { code, body }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.code, Json(self.body)).into_response()
    }
}
