//! Fuzzes a connection of a Kafka client as a whole, from its bytes to its answers: `cargo fuzz run kafka_session`. The same
//! code runs for a moment over mutated requests in the tests of `kera-kafka`.

#![no_main]

use std::cell::RefCell;

use kera_fuzz::kafka_session::{Connection, frames};

thread_local! {
    static CONNECTION: RefCell<Connection> = RefCell::new(Connection::new());
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    CONNECTION.with_borrow_mut(|connection| {
        for frame in frames(data) {
            connection.frame(frame);
        }
    });
});
