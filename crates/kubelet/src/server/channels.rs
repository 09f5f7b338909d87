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

/// In the fifth version, a message on this channel names one that its sender has closed.
const CLOSE: u8 = 255;
/// Messages that may wait in either direction; whoever makes more has to wait.
const QUEUE: usize = 16;

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    /// Else text: the channel's digit, then base64.
    pub binary: bool,
    /// Whether the client can close single channels.
    pub closes: bool,
}

/// What comes from the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Data(u8, Bytes),
    Closed(u8),
}

/// What goes to the client.
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

    /// `None` for messages that carry nothing.
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

/// The two ends that a session holds. When the client has gone, `input` ends and `output` is closed.
pub struct Channels {
    pub input: mpsc::Receiver<Input>,
    pub output: mpsc::Sender<Output>,
}

/// Runs the connection behind a pair of queues. It is closed in good order when `output` is dropped; the future
/// ends when all is written.
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
                // The session is over; what comes now is read until the client closes.
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
            // The client has gone: nobody reads what is still to be written.
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
