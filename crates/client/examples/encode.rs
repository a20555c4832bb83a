//! How many records a producer takes on one core, without a server: routing, encoding, sealing with the checksum, and the
//! buffers' way back.
//!
//! `cargo run --release -p kera-client --example encode -- [record bytes] [chunk KiB] [streamlets] [key bytes]`

use std::time::{Duration, Instant};

use kera_client::measure::{BufferSettings, Front};
use kera_client::{Compression, Record, Routing, StreamId};

const REQUEST_BYTES: usize = 1 << 20;
const ROUND: Duration = Duration::from_secs(1);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let record_bytes = arguments.next().unwrap_or(100);
    let chunk_bytes = arguments.next().unwrap_or(16) << 10;
    let streamlets = arguments.next().unwrap_or(1) as u32;
    let key_bytes = arguments.next().unwrap_or(0);
    let settings = BufferSettings {
        stream: StreamId(1),
        streamlets,
        lanes: 1,
        chunk_bytes,
        chunk_bytes_max: 1 << 20,
        buffer_bytes: 32 << 20,
        linger: Duration::from_millis(1),
        delivery_timeout: Duration::from_secs(60),
        compression: Compression::None,
        routing: Routing::Key,
    };
    let mut front = Front::alone(settings);
    let value = vec![7; record_bytes];
    let mut key = vec![0; key_bytes];
    let mut records = 0_u64;
    let mut chunks = 0_u64;
    let mut bytes = 0_u64;
    println!(
        "{record_bytes} byte values, {key_bytes} byte keys, {} KiB chunks, {streamlets} streamlets",
        chunk_bytes >> 10
    );
    for _ in 0..4 {
        let start = Instant::now();
        let before = records;
        while start.elapsed() < ROUND {
            for _ in 0..1_000 {
                if key_bytes >= 8 {
                    key[..8].copy_from_slice(&records.to_le_bytes());
                }
                let keys = [&key[..]];
                let record =
                    Record { keys: if key_bytes > 0 { &keys } else { &[] }, value: Some(&value), ..Record::default() };
                assert!(front.push(&record, None).expect("a small record"), "the buffer is emptied below");
                records += 1;
            }
            // What the background task does: takes requests' chunks, and settles them.
            let acknowledged = front.acknowledge_all(REQUEST_BYTES);
            chunks += acknowledged.0;
            bytes += acknowledged.1;
        }
        let rate = (records - before) as f64 / start.elapsed().as_secs_f64();
        println!(
            "{:.1} M records/s, {:.2} GB/s of records",
            rate / 1e6,
            rate * (record_bytes + key_bytes) as f64 / 1e9
        );
    }
    println!("{chunks} chunks of {} bytes on average", bytes / chunks.max(1));
}
