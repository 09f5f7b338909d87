//! Upgrades a connection to WebSocket or SPDY/3.1.

use std::time::Duration;

use http::{HeaderMap, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use knarr_serving::IdleMonitor;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::answer::{self, Answer};

/// The header in which SPDY clients name the protocol on top.
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const SPDY: &str = "SPDY/3.1";
/// The maximal size of a client's WebSocket message; kubectl sends 32 KiB.
const MAX_MESSAGE: usize = 4 << 20;
/// The maximal size of queued output for a slow client.
const MAX_WRITE_BUFFER: usize = 8 << 20;

/// A session ends if nothing is transferred for this long. Source: the kubelet's `streamingConnectionIdleTimeout`.
pub const STREAMING_IDLE: Duration = Duration::from_secs(4 * 3600);

pub type Socket = IdleMonitor<TokioIo<Upgraded>>;
pub type WebSocket = WebSocketStream<Socket>;

/// The protocol that the client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// WebSocket, with the value of `Sec-WebSocket-Key`.
    WebSocket {
        key: String,
        protocols: Vec<String>,
    },
    Spdy {
        protocols: Vec<String>,
    },
}

/// Returns the requested upgrade; `None` if the request asks for none that is supported.
pub fn wanted(headers: &HeaderMap) -> Option<Wanted> {
    let has = |name: header::HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    if !has(header::CONNECTION, "upgrade") {
        return None;
    }
    let list = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.flat_map(|v| v.split(',')).map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()).collect()
    };
    if has(header::UPGRADE, "websocket") {
        let key = headers.get(header::SEC_WEBSOCKET_KEY)?.to_str().ok()?.to_owned();
        return Some(Wanted::WebSocket { key, protocols: list("sec-websocket-protocol") });
    }
    has(header::UPGRADE, SPDY).then(|| Wanted::Spdy { protocols: list(STREAM_PROTOCOL) })
}

/// Returns the first offered protocol that is supported; an empty offer means the protocol `""`.
pub fn negotiate<T: Copy>(offered: &[String], supported: &[(&'static str, T)]) -> Option<(&'static str, T)> {
    if offered.is_empty() {
        return supported.iter().find(|(name, _)| name.is_empty()).copied();
    }
    offered.iter().find_map(|o| supported.iter().find(|(name, _)| name == o).copied())
}

/// Returns the response to a request for a protocol that is not supported.
pub fn refused(wanted: Option<&Wanted>) -> Answer {
    let text = match wanted {
        None => "unable to upgrade: missing upgrade headers in request".to_owned(),
        Some(Wanted::WebSocket { protocols, .. }) => {
            format!("unable to upgrade websocket connection: unsupported protocols {protocols:?}")
        }
        Some(Wanted::Spdy { protocols }) => {
            format!("unable to upgrade: unable to negotiate protocol: client supports {protocols:?}")
        }
    };
    let status = if matches!(wanted, Some(Wanted::Spdy { .. })) {
        StatusCode::FORBIDDEN
    } else {
        StatusCode::BAD_REQUEST
    };
    answer::text(status, text)
}

fn switching(pairs: &[(&'static str, &str)]) -> Answer {
    let mut response = Answer::new(answer::body(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in pairs {
        if let (false, Ok(value)) = (value.is_empty(), value.parse()) {
            response.headers_mut().append(*name, value);
        }
    }
    response
}

/// Returns the response that switches to WebSocket with this protocol, and the future connection.
pub fn to_websocket(
    request: Request<Incoming>,
    key: &str,
    protocol: &'static str,
) -> (Answer, impl Future<Output = Option<WebSocket>> + Send + use<>) {
    let accept = derive_accept_key(key.as_bytes());
    let answer = switching(&[
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", &accept),
        ("sec-websocket-protocol", protocol),
    ]);
    let socket = upgraded(request);
    let future = async move {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE))
            .max_write_buffer_size(MAX_WRITE_BUFFER);
        Some(WebSocketStream::from_raw_socket(socket.await?, Role::Server, Some(config)).await)
    };
    (answer, future)
}

/// Returns the response that switches to SPDY with this protocol on top, and the future connection.
pub fn to_spdy(
    request: Request<Incoming>,
    protocol: &'static str,
) -> (Answer, impl Future<Output = Option<Socket>> + Send + use<>) {
    let answer = switching(&[("connection", "Upgrade"), ("upgrade", SPDY), (STREAM_PROTOCOL, protocol)]);
    (answer, upgraded(request))
}

async fn upgraded(request: Request<Incoming>) -> Option<Socket> {
    let upgraded = hyper::upgrade::on(request).await;
    upgraded
        .inspect_err(|error| tracing::debug!(%error, "upgrade failed"))
        .ok()
        .map(|io| IdleMonitor::new(TokioIo::new(io)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (header::HeaderName::from_static(n), v.parse().unwrap())).collect()
    }

    #[test]
    fn what_is_wanted() {
        let websocket = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "k"),
            ("sec-websocket-protocol", "a, b"),
        ]);
        let want = Wanted::WebSocket { key: "k".into(), protocols: vec!["a".into(), "b".into()] };
        assert_eq!(wanted(&websocket), Some(want));
        let spdy = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), (STREAM_PROTOCOL, "p")]);
        assert_eq!(wanted(&spdy), Some(Wanted::Spdy { protocols: vec!["p".into()] }));
        assert_eq!(wanted(&headers(&[("upgrade", "websocket")])), None);
        assert_eq!(wanted(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])), None);
    }

    #[test]
    fn protocols_are_chosen_in_the_clients_order() {
        let supported = [("", 0), ("v4", 4), ("v5", 5)];
        let offer = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(negotiate(&offer(&["v6", "v5", "v4"]), &supported), Some(("v5", 5)));
        assert_eq!(negotiate(&offer(&[]), &supported), Some(("", 0)));
        assert_eq!(negotiate(&offer(&["v6"]), &supported), None);
    }
}
