//! SPDY/3.1: streams that the client opens, each with headers and with data in both directions. This module has
//! the server side; [`client`] has the client side.
//!
//! kubectl's port-forward uses it, and so do exec and attach of older clients. There is no flow control, as in the
//! library of those clients; a stream whose data is not read blocks its connection, so that no queue grows without
//! bound.

pub mod client;
mod frame;
mod headers;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::sync::mpsc;

use super::channels::{Channels, Input, Output};
use frame::{FLAG_FIN, FLAG_UNIDIRECTIONAL, Frame};
use headers::{Inflater, Storer};

/// The maximum of concurrent streams; more are refused.
const MAX_STREAMS: usize = 1000;
/// The number of data chunks that may be queued for a stream, and of frames that may be queued for sending.
const QUEUE: usize = 32;
const READ_BUFFER: usize = 64 << 10;
const REFUSED_STREAM: u32 = 3;

enum Outbound {
    Reply(u32),
    Data(u32, Bytes),
    Finish(u32),
    Reset(u32, u32),
    Ping(u32),
}

/// A stream that the client has opened.
pub struct Stream {
    pub id: u32,
    /// The headers; names are in lower case.
    pub headers: BTreeMap<String, String>,
    /// The client's data; ends when the client has closed its side.
    pub incoming: mpsc::Receiver<Bytes>,
    pub outgoing: Outgoing,
}

/// The server side of a stream.
#[derive(Clone)]
pub struct Outgoing {
    id: u32,
    queue: mpsc::Sender<Outbound>,
}

impl Outgoing {
    /// Sends data. Returns false if the connection has ended.
    pub async fn data(&self, data: Bytes) -> bool {
        self.queue.send(Outbound::Data(self.id, data)).await.is_ok()
    }

    /// Closes the server side.
    pub async fn finish(&self) {
        let _ = self.queue.send(Outbound::Finish(self.id)).await;
    }
}

/// Runs a connection. The receiver returns the client's streams; it ends with the connection, and so does the
/// future.
pub fn connection<S>(io: S) -> (mpsc::Receiver<Stream>, impl Future<Output = ()> + Send)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (accept, accepted) = mpsc::channel(QUEUE);
    let (read_half, mut write_half) = tokio::io::split(io);
    let (queue, mut frames) = mpsc::channel::<Outbound>(QUEUE);
    let reader = Reader { io: read_half, inflater: Inflater::new(), accept, queue, streams: BTreeMap::new() };
    let write = async move {
        let mut storer = Storer::default();
        while let Some(frame) = frames.recv().await {
            if write_frame(&mut write_half, &mut storer, frame).await.is_err() {
                return;
            }
        }
    };
    (accepted, until_either_ends(reader.run(), write))
}

/// Runs both directions; the connection ends when one of them does.
async fn until_either_ends(read: impl Future<Output = ()> + Send, write: impl Future<Output = ()> + Send) {
    let (read, write) = (Box::pin(read), Box::pin(write));
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

async fn write_frame<W: AsyncWrite + Unpin>(
    io: &mut W,
    storer: &mut Storer,
    send: Outbound,
) -> std::io::Result<()> {
    match send {
        Outbound::Reply(id) => io.write_all(&frame::syn_reply(id, &storer.empty_block())).await?,
        Outbound::Data(id, data) => {
            io.write_all(&frame::data_head(id, 0, data.len())).await?;
            io.write_all(&data).await?;
        }
        Outbound::Finish(id) => io.write_all(&frame::data_head(id, FLAG_FIN, 0)).await?,
        Outbound::Reset(id, status) => io.write_all(&frame::rst_stream(id, status)).await?,
        Outbound::Ping(id) => io.write_all(&frame::ping(id)).await?,
    }
    io.flush().await
}

struct Reader<S> {
    io: ReadHalf<S>,
    inflater: Inflater,
    accept: mpsc::Sender<Stream>,
    queue: mpsc::Sender<Outbound>,
    /// The queues of the streams that the client has not closed.
    streams: BTreeMap<u32, mpsc::Sender<Bytes>>,
}

/// The connection has ended.
struct Over;

impl<S: AsyncRead + AsyncWrite> Reader<S> {
    async fn run(mut self) {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER);
        loop {
            loop {
                match frame::take(&mut buffer) {
                    Ok(Some(frame)) => {
                        if self.handle(frame).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return tracing::debug!(%error, "SPDY connection ended"),
                }
            }
            buffer.reserve(READ_BUFFER);
            if !matches!(self.io.read_buf(&mut buffer).await, Ok(1..)) {
                return;
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), Over> {
        match frame {
            Frame::SynStream { id, flags, block } => self.open(id, flags, &block).await?,
            Frame::Headers { id, flags, block } => {
                // The block is read even if it is not needed, to keep the state of the compression.
                self.inflater.read(&block).map_err(|_| Over)?;
                if flags & FLAG_FIN != 0 {
                    self.streams.remove(&id);
                }
            }
            Frame::Data { id, flags, data } => {
                if let Some(stream) = self.streams.get(&id).filter(|_| !data.is_empty())
                    && stream.send(data).await.is_err()
                {
                    // The stream's receiver was dropped; further data is dropped.
                    self.streams.remove(&id);
                }
                if flags & FLAG_FIN != 0 {
                    self.streams.remove(&id);
                }
            }
            Frame::RstStream { id } => {
                self.streams.remove(&id);
            }
            Frame::Ping { id } => self.send(Outbound::Ping(id)).await?,
            Frame::GoAway => return Err(Over),
            Frame::Other => {}
        }
        Ok(())
    }

    async fn open(&mut self, id: u32, flags: u8, block: &[u8]) -> Result<(), Over> {
        let headers = self.inflater.read(block).map_err(|_| Over)?;
        if self.streams.len() >= MAX_STREAMS || self.streams.contains_key(&id) {
            return self.send(Outbound::Reset(id, REFUSED_STREAM)).await;
        }
        let (data, incoming) = mpsc::channel(QUEUE);
        if flags & FLAG_FIN == 0 {
            self.streams.insert(id, data);
        }
        if flags & FLAG_UNIDIRECTIONAL == 0 {
            self.send(Outbound::Reply(id)).await?;
        }
        let outgoing = Outgoing { id, queue: self.queue.clone() };
        self.accept.send(Stream { id, headers, incoming, outgoing }).await.map_err(|_| Over)
    }

    async fn send(&mut self, frame: Outbound) -> Result<(), Over> {
        self.queue.send(frame).await.map_err(|_| Over)
    }
}

/// Waits for one stream of each `streamtype` in `expected`, and turns them into channels. `None` if the client
/// disconnects or opens another stream.
pub async fn gather(
    mut accepted: mpsc::Receiver<Stream>,
    expected: &[(&'static str, u8)],
) -> Option<(Channels, impl Future<Output = ()> + Send + use<>)> {
    let mut streams: BTreeMap<u8, Stream> = BTreeMap::new();
    while streams.len() < expected.len() {
        let stream = accepted.recv().await?;
        let kind = stream.headers.get("streamtype").map(String::as_str);
        let (_, channel) = expected.iter().find(|(name, _)| kind == Some(*name))?;
        streams.insert(*channel, stream);
    }
    let (in_tx, input) = mpsc::channel(QUEUE);
    let (output, mut out_rx) = mpsc::channel::<Output>(QUEUE);
    let mut outgoing = BTreeMap::new();
    for (channel, mut stream) in streams {
        outgoing.insert(channel, stream.outgoing);
        let in_tx = in_tx.clone();
        tokio::spawn(async move {
            while let Some(data) = stream.incoming.recv().await {
                if in_tx.send(Input::Data(channel, data)).await.is_err() {
                    return;
                }
            }
            let _ = in_tx.send(Input::Closed(channel)).await;
        });
    }
    // All streams may be closed while the client still waits for output: it has disconnected only when the
    // connection has ended.
    let watch = async move {
        let _alive = in_tx;
        while accepted.recv().await.is_some() {}
    };
    let write = async move {
        while let Some(Output { channel, data }) = out_rx.recv().await {
            // An empty data frame has no meaning here.
            if let Some(stream) = outgoing.get(&channel).filter(|_| !data.is_empty())
                && !stream.data(data).await
            {
                return;
            }
        }
        for stream in outgoing.values() {
            stream.finish().await;
        }
    };
    let run = async move {
        let (watch, write) = (Box::pin(watch), Box::pin(write));
        tokio::select! {
            () = watch => {}
            () = write => {}
        }
    };
    Some((Channels { input, output }, run))
}
