//! Errors of the HTTP door, always as JSON, also those of axum's own extractors.

use axum::Json;
use axum::body::Bytes;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use kera_protocol::{NO_MAJORITY, Status};

use serde::de::DeserializeOwned;

use super::inside::Refusal;
use crate::api::ErrorJson;

/// The most bytes of a request's body.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

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

    /// What serde says is wrong, without what axum puts in front of it: where, if that is not the whole, and what. Backticks are around values too, so
    /// the names of fields that are not known or not there are taken from the sentences that have them.
    fn described(text: &str) -> HttpError {
        let said = text.split_once(": ").map_or(text, |(_, said)| said);
        let (place, what) = match said.split_once(": ") {
            Some((place, what)) if !place.contains(' ') => (Some(place), what),
            _ => (None, said),
        };
        let named = ["unknown field `", "missing field `", "duplicate field `"]
            .iter()
            .find_map(|sentence| Some(what.strip_prefix(sentence)?.split_once('`')?.0));
        HttpError::field(named.or(place).unwrap_or("body"), said, "/openapi.json describes what is asked for")
    }

    /// A web page would change something; `header` says that it is one.
    pub(super) fn of_page(header: &str) -> HttpError {
        let error = format!("the header {header} says that a web page asks, and no page may change anything here");
        let next = format!("ask without {header}, from a program that is no browser");
        HttpError { code: StatusCode::FORBIDDEN, ..HttpError::field(header, error, &next) }
    }

    /// A loopback address is asked under a name that may be a web page's.
    pub(super) fn of_other_host(host: &str) -> HttpError {
        let error = format!(
            "the header Host is `{host}`, and at a loopback address it has to be one, `localhost` or the name in http.listen"
        );
        let next = "ask for localhost or 127.0.0.1; a proxy in front of the node has to send one of these as Host";
        HttpError { code: StatusCode::FORBIDDEN, ..HttpError::field("Host", error, next) }
    }

    /// It is not done by this node alone.
    pub(super) fn not_here(error: String, next_step: String) -> HttpError {
        HttpError { code: StatusCode::NOT_IMPLEMENTED, body: ErrorJson { error, next_step, ..ErrorJson::default() } }
    }

    /// The node is not far enough.
    pub(super) fn not_ready(reason: String) -> HttpError {
        let next_step = match reason.contains(NO_MAJORITY) {
            // It does not pass by itself.
            true => {
                "if they run, this node is cut off: ask another node; otherwise start as many of them as make a majority; only if they are gone for good: kera cluster \
                 recover"
            }
            false => "try again in a moment",
        };
        let body = ErrorJson { error: reason, next_step: next_step.into(), ..ErrorJson::default() };
        HttpError { code: StatusCode::SERVICE_UNAVAILABLE, body }
    }

    /// The request did not come, or could not be answered, in time.
    pub(super) fn too_slow(limit: std::time::Duration) -> HttpError {
        let body = ErrorJson {
            error: "the request was not sent and answered in time".into(),
            limit: Some(format!("{} s", limit.as_secs_f64())),
            next_step: "send the whole request at once; try again".into(),
            ..ErrorJson::default()
        };
        HttpError { code: StatusCode::REQUEST_TIMEOUT, body }
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

/// What HTTP calls it. Of those that pass by themselves a client knows by it that it is to come again.
fn code_of(status: Status) -> StatusCode {
    use Status::{
        ApplicationActive, ArenaFull, ChunkChecksum, ChunkMalformed, ChunkTooLarge, CursorGone, CursorUnknown,
        DiskFailed, DiskFull, Fenced, FrameTooLarge, HelloExpected, Internal, InvalidArgument, InvalidName,
        InvalidOptions, LeaseLost, LimitReached, LoadPressure, Malformed, NotAChunkBoundary, NotOwner, NotReady,
        NotSupported, Overloaded, Rebuilding, SegmentUnreadable, SequenceGap, SequenceTooOld, ShuttingDown, StaleEpoch,
        StreamExists, Timeout, UnknownApplication, UnknownGroup, UnknownLane, UnknownMember, UnknownOperation,
        UnknownProducer, UnknownStream, UnknownStreamlet, UnknownSubscription, UnsupportedPayload, UnsupportedVersion,
    };
    match status {
        UnknownStream | UnknownStreamlet | UnknownApplication => StatusCode::NOT_FOUND,
        StreamExists | ApplicationActive => StatusCode::CONFLICT,
        InvalidName | InvalidOptions | InvalidArgument | Malformed => StatusCode::BAD_REQUEST,
        LimitReached => StatusCode::TOO_MANY_REQUESTS,
        NotSupported => StatusCode::NOT_IMPLEMENTED,
        NotOwner | NotReady | ShuttingDown | Overloaded | Fenced | ArenaFull | LoadPressure | Rebuilding => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        Timeout => StatusCode::GATEWAY_TIMEOUT,
        // What is wrong with the node, and what nobody who asks by HTTP is told.
        Internal | DiskFailed | SegmentUnreadable => StatusCode::INTERNAL_SERVER_ERROR,
        Status::Ok
        | UnsupportedVersion
        | UnknownOperation
        | FrameTooLarge
        | HelloExpected
        | UnknownLane
        | UnknownProducer
        | ChunkChecksum
        | ChunkTooLarge
        | ChunkMalformed
        | SequenceGap
        | StaleEpoch
        | UnsupportedPayload
        | SequenceTooOld
        | CursorGone
        | CursorUnknown
        | NotAChunkBoundary
        | UnknownGroup
        | UnknownSubscription
        | UnknownMember
        | LeaseLost => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> HttpError {
        use Status::{ApplicationActive, InvalidName, InvalidOptions, StreamExists, UnknownApplication, UnknownStream};
        let code = code_of(refusal.status);
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
        let next_step = match refusal.status {
            // Asked for again it is refused because it is done.
            Status::Timeout => "if something was to be changed, look whether it is before you ask for it again",
            status => status.hint(),
        };
        let body =
            ErrorJson { error: refusal.message, field: field.map(String::from), limit, next_step: next_step.into() };
        HttpError { code, body }
    }
}

/// The query of a request; what is wrong with it is told as JSON.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Asked<T>, HttpError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Asked(query)),
            Err(rejection) => Err(HttpError::described(&rejection.body_text())),
        }
    }
}

/// The names in the path of a request; what is wrong with one is told as JSON.
pub(super) struct Named<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Named<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named<T>, HttpError> {
        let rejection = match Path::from_request_parts(parts, state).await {
            Ok(Path(names)) => return Ok(Named(names)),
            Err(rejection) => rejection,
        };
        let field = match &rejection {
            PathRejection::FailedToDeserializePathParams(error) => match error.kind() {
                ErrorKind::InvalidUtf8InPathParam { key } => key.as_str(),
                _ => "path",
            },
            _ => "path",
        };
        let error = HttpError::field(field, rejection.body_text(), "/openapi.json describes what is asked for");
        Err(HttpError { code: rejection.status(), ..error })
    }
}

/// The JSON body of a request; what is wrong with it is told as JSON. No body is an empty object.
pub(super) struct Told<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Told<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, state: &S) -> Result<Told<T>, HttpError> {
        let bytes = match Bytes::from_request(request, state).await {
            Ok(bytes) => bytes,
            Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let mut error = HttpError::field("body", "the body is too large", "send less");
                error.code = StatusCode::PAYLOAD_TOO_LARGE;
                error.body.limit = Some(BODY_BYTES_MAX.to_string());
                return Err(error);
            }
            Err(rejection) => return Err(HttpError::field("body", rejection.body_text(), "send it again")),
        };
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        match Json::from_bytes(bytes) {
            Ok(Json(told)) => Ok(Told(told)),
            Err(rejection) => Err(HttpError::described(&rejection.body_text())),
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.code, Json(self.body)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load balancer, or a script, takes 500 for a defect of the node.
    #[test]
    fn who_meets_what_passes_by_itself_is_told_to_come_again() {
        let code = |status| HttpError::from(Refusal::new(status, "why")).code;
        let is_told = |status: &Status| code(*status) == StatusCode::SERVICE_UNAVAILABLE;
        let told: Vec<Status> = Status::ALL.iter().copied().filter(is_told).collect();
        let pass = [
            Status::ShuttingDown,
            Status::NotReady,
            Status::Overloaded,
            Status::Fenced,
            Status::NotOwner,
            Status::ArenaFull,
            Status::LoadPressure,
            Status::Rebuilding,
        ];
        assert_eq!(told, pass);
        assert_eq!(code(Status::DiskFailed), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
