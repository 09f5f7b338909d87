//! The client side of SPDY/3.1: streams that are opened on a runtime's streaming server.

use std::collections::BTreeMap;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::headers::{Inflater, Storer};
use super::{Outbound, Outgoing, QUEUE, Reader, Stream, until_either_ends, write_frame};

/// Streams of a client have odd numbers.
const FIRST_STREAM: u32 = 1;

/// Opens a stream for each set of headers, in order. The future drives the connection and ends with it; dropping
/// the future closes the connection.
pub fn open<S>(io: S, streams: &[&[(&str, &str)]]) -> (Vec<Stream>, impl Future<Output = ()> + Send + use<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read_half, mut write_half) = tokio::io::split(io);
    let (queue, mut frames) = mpsc::channel::<Outbound>(QUEUE);
    // The server opens no streams: an attempt would end the connection.
    let (accept, _) = mpsc::channel(1);
    let mut reader = Reader {
        io: read_half,
        inflater: Inflater::new(),
        accept,
        queue: queue.clone(),
        streams: BTreeMap::new(),
    };
    let (mut opened, mut storer, mut head) = (Vec::new(), Storer::default(), Vec::new());
    for (id, headers) in (FIRST_STREAM..).step_by(2).zip(streams) {
        head.extend_from_slice(&super::frame::syn_stream(id, &storer.block(headers)));
        let (data, incoming) = mpsc::channel(QUEUE);
        reader.streams.insert(id, data);
        let outgoing = Outgoing { id, queue: queue.clone() };
        opened.push(Stream { id, headers: BTreeMap::new(), incoming, outgoing });
    }
    let write = async move {
        use tokio::io::AsyncWriteExt;
        if write_half.write_all(&head).await.is_err() || write_half.flush().await.is_err() {
            return;
        }
        while let Some(frame) = frames.recv().await {
            if write_frame(&mut write_half, &mut storer, frame).await.is_err() {
                return;
            }
        }
    };
    (opened, until_either_ends(reader.run(), write))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[tokio::test]
    async fn our_own_server_understands_it() {
        let (near, far) = tokio::io::duplex(4096);
        let (mut accepted, serving) = super::super::connection(far);
        let headers: [&[(&str, &str)]; 2] =
            [&[("streamtype", "error"), ("port", "80")], &[("streamtype", "data"), ("port", "80")]];
        let (mut streams, running) = open(near, &headers);
        tokio::spawn(serving);
        let running = tokio::spawn(running);
        let error = accepted.recv().await.unwrap();
        let mut data = accepted.recv().await.unwrap();
        assert_eq!((error.id, error.headers["streamtype"].as_str()), (1, "error"));
        assert_eq!((data.id, data.headers["port"].as_str()), (3, "80"));
        assert!(streams[1].outgoing.data(Bytes::from_static(b"ping")).await);
        assert_eq!(data.incoming.recv().await.unwrap(), "ping");
        streams[1].outgoing.finish().await;
        assert_eq!(data.incoming.recv().await, None);
        assert!(data.outgoing.data(Bytes::from_static(b"pong")).await);
        data.outgoing.finish().await;
        assert_eq!(streams[1].incoming.recv().await.unwrap(), "pong");
        assert_eq!(streams[1].incoming.recv().await, None);
        drop((accepted, error, data));
        running.abort();
    }
}
