//! Logs over a WebSocket: each chunk from the kubelet is one message.

use futures_util::{SinkExt, StreamExt};
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use knarr_apimachinery::status::StatusError;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

use knarr_wire::body::Body;
use tokio_util::sync::CancellationToken;

const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
/// The subprotocol that sends the log as bytes.
const BINARY: &str = "binary.k8s.io";

/// Returns whether the client asks for a WebSocket.
pub fn wanted(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Switches the client's connection to the WebSocket protocol and forwards the log.
pub fn answer(
    stop: CancellationToken,
    headers: &HeaderMap,
    client: OnUpgrade,
    log: Response<Body>,
) -> Result<Response<Body>, StatusError> {
    let mut answer = switching(headers)?;
    let Body::Stream(mut pieces) = log.into_body() else {
        return Err(StatusError::internal("a log that is no stream"));
    };
    let pass_on = async move {
        let Ok(client) = client.await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(client), Role::Server, None).await;
        let (mut out, mut from_client) = socket.split();
        loop {
            let piece = tokio::select! {
                piece = pieces.next() => piece,
                // From the client, only the end of the connection matters.
                message = from_client.next() => match message {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                    Some(Ok(_)) => continue,
                },
            };
            let Some(Ok(piece)) = piece else { break };
            if out.send(Message::Binary(piece)).await.is_err() {
                return;
            }
        }
        // The client may have disconnected already.
        let _ = out.send(Message::Close(None)).await;
    };
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = pass_on => {}
        }
    });
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    Ok(answer)
}

fn switching(headers: &HeaderMap) -> Result<Response<Body>, StatusError> {
    let key =
        headers.get(SEC_WEBSOCKET_KEY).ok_or_else(|| StatusError::bad_request("not websocket protocol"))?;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        .map_err(|e| StatusError::bad_request(e.to_string()))?;
    let mut answer = Response::new(Body::empty());
    let set = answer.headers_mut();
    set.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    set.insert(UPGRADE, HeaderValue::from_static("websocket"));
    set.insert(ACCEPT, accept);
    let offered = headers.get_all(&PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let offered: Vec<&str> = offered.flat_map(|v| v.split(',')).map(str::trim).collect();
    if offered.contains(&BINARY) {
        set.insert(PROTOCOL, HeaderValue::from_static(BINARY));
    } else if !offered.is_empty() {
        return Err(StatusError::bad_request(format!(
            "unsupported websocket protocols: {}",
            offered.join(", ")
        )));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(protocols: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("WebSocket"));
        headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        for protocol in protocols {
            headers.append(PROTOCOL, HeaderValue::from_static(protocol));
        }
        headers
    }

    #[test]
    fn the_handshake_chooses_a_protocol() {
        for (offered, chosen) in [
            (&[][..], Ok(None)),
            (&["binary.k8s.io"][..], Ok(Some("binary.k8s.io"))),
            (&["x, binary.k8s.io"][..], Ok(Some("binary.k8s.io"))),
            (&["v4.channel.k8s.io"][..], Err(())),
        ] {
            let answer = switching(&headers(offered));
            let found = answer.map(|a| {
                // The example of RFC 6455.
                assert_eq!(a.headers()[&ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
                a.headers().get(&PROTOCOL).map(|p| p.to_str().unwrap().to_owned())
            });
            assert_eq!(found.map_err(drop), chosen.map(|c| c.map(str::to_owned)), "{offered:?}");
        }
        assert!(wanted(&headers(&[])) && !wanted(&HeaderMap::new()));
        assert!(switching(&HeaderMap::new()).is_err());
    }
}
