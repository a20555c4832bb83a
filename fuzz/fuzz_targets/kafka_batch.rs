//! Fuzzes `kera_fuzz::targets::kafka_batch`; `cargo fuzz run kafka_batch` starts it.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kera_fuzz::targets::kafka_batch(data));
