//! Peers that occupy connections without using them, over real sockets with short limits.

use std::time::Duration;

use http::{Method, StatusCode};
use knarr_serving::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::harness::{SOON, Server, limits, request, text};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Reads until the server has closed the connection.
async fn closed(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut buffer = [0; 1024];
    let reading = async { while matches!(stream.read(&mut buffer).await, Ok(1..)) {} };
    timeout(SOON, reading).await.is_ok()
}

#[tokio::test]
async fn peers_that_never_begin_do_not_keep_others_out() {
    let server = Server::start(limits()).await;
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    // Until their time is over there is no free slot; then there is one.
    let served = async {
        loop {
            if let Some((mut sender, _)) = server.http1().await
                && let Ok(response) = sender.send_request(request(Method::GET, "/")).await
            {
                return text(response).await;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(timeout(SOON, served).await.unwrap(), "hello");
    drop(silent);
}

#[tokio::test]
async fn a_connection_without_a_request_ends() {
    let server = Server::start(limits()).await;
    for (protocol, sent) in [
        ("http/1.1", &b""[..]),
        ("http/1.1", b"GET / HT"),
        // Bytes that look like the beginning of HTTP/2 are read as HTTP/1 if that was negotiated.
        ("http/1.1", &PREFACE[..20]),
        ("h2", b""),
        ("h2", &PREFACE[..20]),
        ("h2", PREFACE),
        ("h2", &[PREFACE, SETTINGS].concat()),
    ] {
        let mut stream = server.connect(protocol).await.unwrap();
        stream.write_all(sent).await.unwrap();
        assert!(closed(&mut stream).await, "{protocol} {:?}", String::from_utf8_lossy(sent));
    }
}

#[tokio::test]
async fn an_idle_connection_ends_and_a_busy_one_does_not() {
    let server = Server::start(limits()).await;
    let (mut busy, busy_end) = server.http2().await;
    let waiting = tokio::spawn(busy.send_request(request(Method::GET, "/wait")));
    for _ in 0..3 {
        let (mut sender, ended) = server.http2().await;
        let response = sender.send_request(request(Method::GET, "/")).await.unwrap();
        assert_eq!(text(response).await, "hello");
        timeout(SOON, ended).await.unwrap().unwrap();
    }
    let (mut quiet, quiet_end) = server.http1().await.unwrap();
    let response = quiet.send_request(request(Method::GET, "/")).await.unwrap();
    assert_eq!(text(response).await, "hello");
    timeout(SOON, quiet_end).await.unwrap().unwrap();
    // Several idle times have passed.
    assert!(!busy_end.is_finished());
    server.greeter.go.notify_one();
    assert_eq!(text(waiting.await.unwrap().unwrap()).await, "hello");
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_dropped_with_its_requests() {
    let limits = Limits {
        ping_interval: Duration::from_millis(200),
        ping_timeout: Duration::from_millis(200),
        idle: Duration::from_secs(600),
        headers: Duration::from_secs(600),
        ..limits()
    };
    let server = Server::start(limits).await;
    let mut stream = server.connect("h2").await.unwrap();
    // GET https /wait on stream 1, HPACK without Huffman codes.
    let block = [&[0x82, 0x87, 0x04, 5][..], b"/wait", &[0x41, 9], b"localhost"].concat();
    let head = [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1][..], &block].concat();
    stream.write_all(&[PREFACE, SETTINGS, &head].concat()).await.unwrap();
    assert!(closed(&mut stream).await);
}

#[tokio::test]
async fn who_is_not_known_keeps_no_http2_connection() {
    let server = Server::start(Limits { idle: Duration::from_secs(600), ..limits() }).await;
    let (mut sender, ended) = server.http2().await;
    let response = sender.send_request(request(Method::GET, "/unknown")).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(text(response).await, "hello");
    timeout(SOON, ended).await.unwrap().unwrap();

    // The peer does not keep the connection open by not reading the answer either: its window is empty.
    let mut stream = server.connect("h2").await.unwrap();
    let block = [&[0x82, 0x87, 0x04, 8][..], b"/unknown", &[0x41, 9], b"localhost"].concat();
    let head = [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1][..], &block].concat();
    let no_window = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    stream.write_all(&[PREFACE, &no_window, &head].concat()).await.unwrap();
    assert!(closed(&mut stream).await);
}

#[tokio::test]
async fn a_stop_ends_idle_connections_at_once() {
    let server = Server::start(Limits { idle: SOON * 60, headers: SOON * 60, ..limits() }).await;
    let (mut sender, ended) = server.http2().await;
    let response = sender.send_request(request(Method::GET, "/")).await.unwrap();
    assert_eq!(text(response).await, "hello");
    server.stop.cancel();
    timeout(SOON, ended).await.unwrap().unwrap();
    timeout(SOON, server.serving).await.unwrap().unwrap();
}
