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
/// a page does whose owner lets it lead here (DNS rebinding). `is_loopback`: the listener has such an address.
pub(super) fn refusal(request: &Request, is_loopback: bool) -> Option<HttpError> {
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
    if !is_loopback || !(is_change || request.uri().path().starts_with("/v1/")) {
        return None;
    }
    let asked = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.as_bytes());
    let other = asked.into_iter().chain(hosts).find(|host| !is_this_machine(host))?;
    Some(HttpError::of_other_host(&String::from_utf8_lossy(other)))
}

/// Whether only this machine can be meant, at any port.
fn is_this_machine(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or_else(|_| name.eq_ignore_ascii_case("localhost"), |address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_this_machine_alone() {
        for host in ["localhost", "LocalHost:7071", "127.0.0.1", "127.9.9.9:80", "[::1]:7071", "[::ffff:127.0.0.1]"] {
            assert!(is_this_machine(host.as_bytes()), "{host}");
        }
        let others =
            ["", "evil.example", "localhost.evil.example:7071", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:1"];
        for host in others.iter().chain(&["127.0.0.1@evil.example", "0.0.0.0:7071", "\u{e4}"]) {
            assert!(!is_this_machine(host.as_bytes()), "{host}");
        }
    }
}
