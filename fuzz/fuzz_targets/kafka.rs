//! Fuzzes what a request of a Kafka client goes through before it is served; `cargo fuzz run kafka` starts it. It is not among
//! the targets of `kera_fuzz`: the door has random bytes in its own tests.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(kera_kafka::read_request(data)));
