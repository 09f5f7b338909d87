//! Several streams over one WebSocket: each message begins with the number of its channel.
//!
//! Source: `k8s.io/streaming/pkg/httpstream/wsstream`, KEP-4006 for the fifth version.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// The channel of the fifth version on which a sender names a channel that it has closed.
const CLOSE: u8 = 255;
/// The number of messages that may be queued in either direction; a sender waits when the queue is full.
const QUEUE: usize = 16;

/// The encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    /// Whether messages are binary; otherwise they are text: the channel's digit, then base64.
    pub binary: bool,
    /// Whether the client can close single channels.
    pub closes: bool,
}

/// A message from the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Data(u8, Bytes),
    Closed(u8),
}

/// A message to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub channel: u8,
    pub data: Bytes,
}

impl Codec {
    pub fn encode(self, output: &Output) -> Message {
        let Output { channel, data } = output;
        if self.binary {
            let mut message = Vec::with_capacity(data.len() + 1);
            message.push(*channel);
            message.extend_from_slice(data);
            return Message::Binary(message.into());
        }
        let mut message = String::with_capacity(data.len() / 3 * 4 + 5);
        message.push(char::from(b'0'.saturating_add(*channel)));
        STANDARD.encode_string(data, &mut message);
        Message::Text(message.into())
    }

    /// Decodes a message; `None` if it carries no data.
    pub fn decode(self, message: Message) -> Option<Input> {
        let bytes: Bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::from(text),
            _ => return None,
        };
        let (first, rest) = (*bytes.first()?, bytes.slice(1..));
        if !self.binary {
            return Some(Input::Data(first.wrapping_sub(b'0'), STANDARD.decode(&rest).ok()?.into()));
        }
        if self.closes && first == CLOSE {
            return Some(Input::Closed(*rest.first()?));
        }
        Some(Input::Data(first, rest))
    }
}

/// The session's ends of the streams. When the client disconnects, `input` ends and `output` is closed.
pub struct Channels {
    pub input: mpsc::Receiver<Input>,
    pub output: mpsc::Sender<Output>,
}

/// Connects a WebSocket with a pair of queues. The connection is closed properly when `output` is dropped; the
/// future ends when everything is written.
pub fn over_websocket<S>(
    socket: WebSocketStream<S>,
    codec: Codec,
) -> (Channels, impl Future<Output = ()> + Send)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sink, mut stream) = socket.split();
    let (in_tx, input) = mpsc::channel(QUEUE);
    let (output, mut out_rx) = mpsc::channel::<Output>(QUEUE);
    let read = async move {
        while let Some(Ok(message)) = stream.next().await {
            if message.is_close() {
                break;
            }
            if let Some(input) = codec.decode(message)
                && in_tx.send(input).await.is_err()
            {
                // The session has ended; messages are read and dropped until the client closes the connection.
                while let Some(Ok(_)) = stream.next().await {}
            }
        }
    };
    let write = async move {
        while let Some(output) = out_rx.recv().await {
            if sink.send(codec.encode(&output)).await.is_err() {
                return;
            }
        }
        let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = sink.send(Message::Close(Some(normal))).await;
        let _ = sink.close().await;
    };
    let run = async move {
        let (mut read, mut write) = (Box::pin(read), Box::pin(write));
        tokio::select! {
            // The client has disconnected; what is still queued cannot be sent.
            () = &mut read => {}
            () = &mut write => {}
        }
    };
    (Channels { input, output }, run)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V5: Codec = Codec { binary: true, closes: true };
    const V4: Codec = Codec { binary: true, closes: false };
    const BASE64: Codec = Codec { binary: false, closes: false };

    #[test]
    fn messages() {
        let hi = Output { channel: 1, data: Bytes::from_static(b"hi") };
        assert_eq!(V5.encode(&hi), Message::Binary(vec![1, b'h', b'i'].into()));
        assert_eq!(BASE64.encode(&hi), Message::Text("1aGk=".into()));
        let input = |channel, text: &'static str| Input::Data(channel, Bytes::from_static(text.as_bytes()));
        let table = [
            (V5, Message::Binary(vec![0, b'x'].into()), Some(input(0, "x"))),
            (V5, Message::Binary(vec![255, 0].into()), Some(Input::Closed(0))),
            (V5, Message::Binary(vec![255].into()), None),
            (V4, Message::Binary(vec![0].into()), Some(input(0, ""))),
            (V4, Message::Binary(Bytes::new()), None),
            (BASE64, Message::Text("0eA==".into()), Some(input(0, "x"))),
            (BASE64, Message::Text("0!".into()), None),
            (V4, Message::Ping(Bytes::new()), None),
        ];
        for (codec, message, want) in table {
            assert_eq!(codec.decode(message.clone()), want, "{message:?}");
        }
    }
}
