//! Loopback: raw, and with the bare server behind it.
//!
//! The bare server is what any broker has to do at least: receive frames on one thread of a tokio current-thread
//! runtime, copy each into a ring of buffers that is larger than the nearer caches, and compare its checksum. It keeps
//! nothing, answers nothing and parses nothing but a length, so no broker with the same parts can be faster.
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
/// What the server asks the kernel for at once, unless a frame is larger.
const READ_BYTES: usize = 512 << 10;
const RING_BYTES: usize = 64 << 20;

/// Bytes per second from one blocking thread to another.
pub(super) fn raw(time: Duration) -> Result<f64, BenchError> {
    let (mut sender, mut receiver) = connected()?;
    let sending = std::thread::spawn(move || {
        let piece = vec![1; RAW_PIECE_BYTES];
        let started = Instant::now();
        while started.elapsed() < time {
            sender.write_all(&piece)?;
        }
        Ok::<(), std::io::Error>(())
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
    while started.elapsed() < time {
        // The clock is looked at once in 64 KiB, so that it does not slow down small frames.
        for _ in 0..(64 << 10) / frame_bytes + 1 {
            sender.write_all(&frame).map_err(|e| BenchError::io("sending to the bare server", e))?;
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
        let mut ring = Ring { bytes: vec![0; RING_BYTES], at: 0 };
        let mut buffer = vec![0; READ_BYTES];
        let (mut filled, mut total) = (0, 0);
        loop {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(total),
                n => filled += n,
            }
            let mut start = 0;
            let mut need = HEAD_BYTES;
            while let Some(head) = buffer[start..filled].first_chunk::<HEAD_BYTES>() {
                let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
                if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&length) {
                    return Err(std::io::Error::other("a frame of an impossible length"));
                }
                need = length;
                if filled - start < length {
                    break;
                }
                ring.take(&buffer[start..start + length])?;
                total += length as u64;
                start += length;
            }
            buffer.copy_within(start..filled, 0);
            filled -= start;
            if buffer.len() < need {
                buffer.resize(need, 0);
            }
        }
    })
}

/// Where frames are copied to, one behind the other and round again.
struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Ring {
    #[inline]
    fn take(&mut self, frame: &[u8]) -> std::io::Result<()> {
        if self.at + frame.len() > self.bytes.len() {
            self.at = 0;
        }
        let copy = &mut self.bytes[self.at..self.at + frame.len()];
        copy.copy_from_slice(frame);
        self.at += frame.len();
        let expected = u32::from_le_bytes([copy[4], copy[5], copy[6], copy[7]]);
        if crc32c(&copy[HEAD_BYTES..]) == expected { Ok(()) } else { Err(std::io::Error::other("a damaged frame")) }
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

    #[test]
    fn a_damaged_frame_is_an_error() {
        let mut bytes = frame(1000);
        bytes[500] ^= 1;
        assert!(served(&bytes).is_err());
        assert!(served(&[255; 100]).is_err());
    }
}
