//! Every path of the HTTP door, once: the router and the OpenAPI document are made from the same list.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, delete, get, patch, post};
use utoipa::OpenApi;

use super::error::HttpError;
use super::inside::Inside;
use super::{HttpNode, HttpState, admin, browsers, health};

/// What handlers get: the node, as far as it is there.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) state: Arc<HttpState>,
    inside: Inside,
}

impl Door {
    pub(super) fn new(state: Arc<HttpState>, inside: Inside) -> Door {
        Door { state, inside }
    }

    /// The running node, or what it waits for.
    pub(super) fn node(&self) -> Result<&HttpNode, HttpError> {
        self.state
            .node
            .get()
            .ok_or_else(|| HttpError::not_ready(self.state.readiness.not_ready().unwrap_or_else(|| "starting".into())))
    }

    /// The way to ask the node.
    pub(super) fn inside(&self) -> Result<Inside, HttpError> {
        self.node()?;
        Ok(self.inside.clone())
    }
}

macro_rules! routes {
    ($($method:ident $path:literal => $module:ident::$handler:ident,)+) => {
        /// Methods and paths, as the router knows them.
        #[cfg(test)]
        pub(super) const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)+];

        fn paths() -> Vec<(&'static str, MethodRouter<Door>)> {
            vec![$(($path, $method($module::$handler)),)+]
        }

        #[derive(OpenApi)]
        #[openapi(
            info(title = "KerA", description = "Health, metrics and administration of a KerA node. Changes that a web page asks for are refused (403)."),
            paths($($module::$handler),+),
        )]
        struct Document;
    };
}

routes! {
    get "/healthz" => health::healthz,
    get "/readyz" => health::readyz,
    get "/metrics" => health::metrics,
    get "/v1/status" => admin::status,
    get "/v1/streams" => admin::list_streams,
    post "/v1/streams" => admin::create_stream,
    get "/v1/streams/{stream}" => admin::get_stream,
    patch "/v1/streams/{stream}" => admin::alter_stream,
    delete "/v1/streams/{stream}" => admin::delete_stream,
    get "/v1/applications" => admin::list_applications,
    get "/v1/applications/{stream}/{application}" => admin::get_application,
    delete "/v1/applications/{stream}/{application}" => admin::delete_application,
    post "/v1/applications/{stream}/{application}/reset" => admin::reset_application,
}

/// The OpenAPI document of the HTTP door, as JSON.
pub fn openapi_text() -> String {
    Document::openapi().to_pretty_json().unwrap_or_default()
}

/// `loopback`: the listener has a loopback address, and by this name it was set.
pub(super) fn router(door: Door, loopback: Option<Arc<str>>) -> Router {
    let routes = paths().into_iter().fold(Router::new(), |router, (path, method)| router.route(path, method));
    routes
        .route("/openapi.json", get(openapi))
        .fallback(|request: Request| async move { HttpError::no_such_path(request.uri().path()) })
        .method_not_allowed_fallback(|| async { HttpError::no_such_method() })
        .layer(DefaultBodyLimit::max(super::error::BODY_BYTES_MAX))
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let refused = browsers::refusal(&request, loopback.as_deref());
            async move {
                match refused {
                    Some(refused) => refused.into_response(),
                    None => next.run(request).await,
                }
            }
        }))
        .with_state(door)
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi_text())
}
