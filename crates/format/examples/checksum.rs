//! How fast checksums and records are on this machine:
//! `cargo run --release -p kera-format --example checksum`.

use kera_format::chunk::ChunkTarget;
use kera_format::{BrokerPart, ChunkBuilder, ChunkView, Compression, Record, Records};
use std::hint::black_box;
use std::time::Instant;

/// Nanoseconds of one call, the best of some tries.
fn nanoseconds(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let one_try = |call: &mut dyn FnMut(usize)| {
        let start = Instant::now();
        (0..calls).for_each(&mut *call);
        start.elapsed().as_nanos() as f64 / calls as f64
    };
    (0..7).map(|_| one_try(&mut call)).fold(f64::MAX, f64::min)
}

fn checksums() {
    let buffer: Vec<u8> = (0..2u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    println!("CRC-32C       whole              in two parts");
    for bytes in [40, 96, 128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        let calls = 100_000_000 / (bytes + 400);
        let at = |i: usize| &buffer[(i * 8) % 65_536..][..bytes];
        let whole = nanoseconds(calls, |i| {
            black_box(kera_format::checksum::crc32c(black_box(at(i))));
        });
        let parts = nanoseconds(calls, |i| {
            let mut crc = kera_format::checksum::Crc32c::new();
            crc.update(black_box(&at(i)[..8]));
            crc.update(black_box(&at(i)[12..]));
            black_box(crc.finish());
        });
        let rate = bytes as f64 / whole;
        println!("{bytes:>8} B  {whole:>8.1} ns {rate:>5.1} GB/s  {parts:>8.1} ns");
    }
}

fn records() {
    let value = [7u8; 100];
    println!("\nrecords of 100 bytes, chunks of 16 KiB");
    for (name, record) in [
        ("value", Record::value(&value)),
        ("value, own checksum", Record { checksum: true, ..Record::value(&value) }),
        ("key and value", Record { keys: &[b"12345678"], ..Record::value(&value) }),
    ] {
        let mut buffer = Vec::with_capacity(20 << 10);
        let count = (16 << 10) / record.encoded_bytes();
        let fill = |buffer: Vec<u8>| {
            let mut builder = ChunkBuilder::with_buffer(buffer);
            (0..count).for_each(|_| builder.push(black_box(&record)));
            builder
        };
        let push = nanoseconds(2_000, |_| {
            let builder = fill(std::mem::take(&mut buffer));
            buffer = builder.seal(&ChunkTarget::default(), Compression::None).expect("a chunk");
        });
        let chunk = buffer.clone();
        let verify = nanoseconds(2_000, |_| {
            black_box(ChunkView::parse(black_box(&chunk)).and_then(|view| view.verify())).expect("a good chunk");
        });
        let mut stamped = chunk.clone();
        let stamp = nanoseconds(20_000, |_| BrokerPart::default().stamp(black_box(&mut stamped)));
        let view = ChunkView::parse(&chunk).expect("a good chunk");
        let read = nanoseconds(2_000, |_| {
            let values = Records::new(black_box(view.payload())).map(|r| r.expect("a record").value());
            black_box(values.map(|value| value.map_or(0, <[u8]>::len)).sum::<usize>());
        });
        println!(
            "{name:<20}  write and seal {:>5.1} ns/record  read {:>4.1} ns/record  verify {verify:>6.0} ns/chunk  stamp {stamp:>4.1} ns/chunk",
            push / count as f64,
            read / count as f64
        );
    }
}

fn compression() {
    let text: Vec<u8> =
        (0..16u32 << 10).map(|i| b"carrier AA, delay 17; "[(i % 22) as usize] ^ (i % 97 == 0) as u8).collect();
    println!("\ncompression of 16 KiB");
    for compression in [Compression::Lz4, Compression::Zstd] {
        let (mut packed, mut plain) = (Vec::new(), Vec::new());
        let pack = nanoseconds(500, |_| compression.compress_into(black_box(&text), &mut packed));
        let unpack = nanoseconds(500, |_| {
            compression.decompress_into(black_box(&packed), &mut plain).expect("what was compressed");
        });
        let (name, bytes) = (compression.name(), packed.len());
        println!("{name:<5} to {bytes:>5} B  {:>6.1} µs  back {:>6.1} µs", pack / 1e3, unpack / 1e3);
    }
}

fn main() {
    checksums();
    records();
    compression();
}
