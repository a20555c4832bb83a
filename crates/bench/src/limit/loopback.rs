//! Loopback: raw, and with the bare server behind it.
//!
//! The bare server is one simple server that does what any broker has to do: receive frames on one thread of a tokio
//! current-thread runtime, copy each into a ring that is larger than the nearer caches, and compare its checksum. It
//! keeps nothing, answers nothing and parses nothing but a length. It is a yardstick and not a bound: its frames are sent
//! one by one over one connection, and a node that is sent many chunks with one call, or receives on two threads, can be
//! ahead of it.
//!
//! ```text
//! frame  offset  bytes  field
//!             0      4  length    of the whole frame
//!             4      4  checksum  CRC-32C of what follows
//!             8      …  filling
//! ```

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kera_format::checksum::crc32c;
use tokio::io::AsyncReadExt;

use crate::BenchError;

/// The smallest frame.
pub(super) const FRAME_BYTES_MIN: usize = 64;
/// The largest frame.
pub(super) const FRAME_BYTES_MAX: usize = 16 << 20;

const HEAD_BYTES: usize = 8;
const RAW_PIECE_BYTES: usize = 256 << 10;
/// What the server asks the kernel for at once.
const READ_BYTES: usize = 512 << 10;
const RING_BYTES: usize = 64 << 20;

/// Bytes per second from one blocking thread to another.
pub(super) fn raw(time: Duration) -> Result<f64, BenchError> {
    let (mut sender, mut receiver) = connected()?;
    let sending = std::thread::spawn(move || {
        let piece = vec![1; RAW_PIECE_BYTES];
        let started = Instant::now();
        // Once in any case: the time may be over before this thread has its first turn.
        loop {
            sender.write_all(&piece)?;
            if started.elapsed() >= time {
                return Ok::<(), std::io::Error>(());
            }
        }
    });
    let mut buffer = vec![0; RAW_PIECE_BYTES];
    let started = Instant::now();
    let mut bytes = 0;
    loop {
        match receiver.read(&mut buffer).map_err(|e| BenchError::io("reading from loopback", e))? {
            0 => break,
            n => bytes += n,
        }
    }
    let took = started.elapsed();
    joined(sending)?;
    Ok(bytes as f64 / took.as_secs_f64())
}

/// Bytes per second through the bare server.
pub(super) fn bare_server(frame_bytes: usize, time: Duration) -> Result<f64, BenchError> {
    let (mut sender, receiver) = connected()?;
    let serving = std::thread::spawn(move || serve(receiver));
    let frame = frame(frame_bytes);
    let started = Instant::now();
    loop {
        // The clock is looked at once in 64 KiB, so that it does not slow down small frames.
        for _ in 0..(64 << 10) / frame_bytes + 1 {
            sender.write_all(&frame).map_err(|e| BenchError::io("sending to the bare server", e))?;
        }
        if started.elapsed() >= time {
            break;
        }
    }
    drop(sender);
    let bytes = joined(serving)?;
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}

fn frame(bytes: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
    let checksum = crc32c(&frame[HEAD_BYTES..]);
    frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    frame[4..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    frame
}

fn connected() -> Result<(TcpStream, TcpStream), BenchError> {
    let connect = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        sender.set_nodelay(true)?;
        Ok((sender, listener.accept()?.0))
    };
    connect().map_err(|e| BenchError::io("connecting over loopback", e))
}

fn joined<T>(thread: std::thread::JoinHandle<std::io::Result<T>>) -> Result<T, BenchError> {
    match thread.join() {
        Ok(outcome) => outcome.map_err(|e| BenchError::io("loopback", e)),
        Err(_) => Err(BenchError::Thread { what: "a thread of the loopback measurement" }),
    }
}

/// Takes frames until the other side closes. Gives the bytes of whole, correct frames.
fn serve(receiver: TcpStream) -> std::io::Result<u64> {
    receiver.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut stream = tokio::net::TcpStream::from_std(receiver)?;
        let mut ring = Ring { bytes: vec![0; RING_BYTES], start: 0, end: 0, missing: 0 };
        let mut buffer = vec![0; READ_BYTES];
        let (mut held, mut total) = (0, 0);
        loop {
            let received = match stream.read(&mut buffer[held..]).await? {
                0 => return Ok(total),
                n => held + n,
            };
            let (whole, rest) = ring.take(&buffer[..received])?;
            total += whole;
            // Less than a head.
            buffer.copy_within(received - rest..received, 0);
            held = rest;
        }
    })
}

/// Where frames are copied to, one behind the other and round again. What has come of a frame is copied at once, so that no byte but
/// those of a divided head is copied more than that once behind the kernel.
struct Ring {
    bytes: Vec<u8>,
    /// Where the frame begins that comes in, or came in last.
    start: usize,
    /// Up to where it is there.
    end: usize,
    /// Its bytes that are still to come.
    missing: usize,
}

impl Ring {
    /// Takes what was received, but for the start of a head. Gives the bytes of frames that are whole by now, and how many bytes at
    /// the end it did not take.
    fn take(&mut self, mut received: &[u8]) -> std::io::Result<(u64, usize)> {
        let mut whole = 0;
        while !received.is_empty() {
            if self.missing == 0 {
                let Some(head) = received.first_chunk::<HEAD_BYTES>() else { break };
                self.begin(u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize)?;
            }
            let (piece, behind) = received.split_at(received.len().min(self.missing));
            self.bytes[self.end..self.end + piece.len()].copy_from_slice(piece);
            self.end += piece.len();
            self.missing -= piece.len();
            received = behind;
            if self.missing == 0 {
                whole += self.checked()?;
            }
        }
        Ok((whole, received.len()))
    }

    fn begin(&mut self, frame_bytes: usize) -> std::io::Result<()> {
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Err(std::io::Error::other("a frame of an impossible length"));
        }
        self.start = if self.end + frame_bytes > self.bytes.len() { 0 } else { self.end };
        (self.end, self.missing) = (self.start, frame_bytes);
        Ok(())
    }

    /// The bytes of a frame that is whole, once its checksum was compared.
    fn checked(&self) -> std::io::Result<u64> {
        let frame = &self.bytes[self.start..self.end];
        let expected = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
        if crc32c(&frame[HEAD_BYTES..]) != expected {
            return Err(std::io::Error::other("a damaged frame"));
        }
        Ok(frame.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(bytes: &[u8]) -> std::io::Result<u64> {
        let (mut sender, receiver) = connected().unwrap();
        let serving = std::thread::spawn(move || serve(receiver));
        for piece in bytes.chunks(777) {
            // The server may have closed already, having seen what is wrong.
            let _ = sender.write_all(piece);
        }
        drop(sender);
        serving.join().unwrap()
    }

    #[test]
    fn frames_in_odd_pieces_are_counted_whole() {
        let mut bytes = Vec::new();
        for size in [64, 100, 4096, 3 << 20, 64] {
            bytes.extend(frame(size));
        }
        assert_eq!(served(&bytes).unwrap(), bytes.len() as u64);
        assert_eq!(served(&bytes[..bytes.len() - 1]).unwrap(), bytes.len() as u64 - 64);
    }

    /// Wherever a frame is divided, what has come of it is in the ring already, and only the start of a head is left over.
    #[test]
    fn of_what_was_received_at_most_a_divided_head_is_not_taken() {
        let frames: Vec<u8> = [64, 100, 3000].into_iter().flat_map(frame).collect();
        for at in 0..=frames.len() {
            let mut ring = Ring { bytes: vec![0; 4096], start: 0, end: 0, missing: 0 };
            let (first, rest) = ring.take(&frames[..at]).unwrap();
            assert!(rest < HEAD_BYTES, "{rest} bytes of {at} are left over");
            let (second, left) = ring.take(&frames[at - rest..]).unwrap();
            assert_eq!((first + second, left), (frames.len() as u64, 0));
            // Round again.
            assert_eq!(ring.take(&frames).unwrap(), (frames.len() as u64, 0));
        }
    }

    #[test]
    fn a_damaged_frame_is_an_error() {
        let mut bytes = frame(1000);
        bytes[500] ^= 1;
        assert!(served(&bytes).is_err());
        assert!(served(&[255; 100]).is_err());
    }
}
