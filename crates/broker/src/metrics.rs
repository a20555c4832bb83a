//! What a broker counts. Sessions count in plain numbers of their own and add them here once per call, so that the
//! threads do not fight over cache lines for every chunk; the server reads them for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Counters since the process started, and gauges; relaxed atomics.
        #[derive(Debug, Default)]
        pub struct BrokerMetrics {
            $($(#[$doc])* pub $name: AtomicU64),+
        }

        /// The same numbers, of one session and not yet added, or read at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct BrokerCounts {
            $($(#[$doc])* pub $name: u64),+
        }

        impl BrokerMetrics {
            /// All of them as they are now, each for itself.
            pub fn read(&self) -> BrokerCounts {
                BrokerCounts { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }

            /// Adds what `counts` holds and empties it.
            pub(crate) fn add(&self, counts: &mut BrokerCounts) {
                $(if counts.$name != 0 {
                    self.$name.fetch_add(counts.$name, Ordering::Relaxed);
                })+
                *counts = BrokerCounts::default();
            }
        }
    };
}

counters! {
    /// Write requests answered.
    write_requests,
    /// Chunks appended.
    chunks_appended,
    /// Records appended.
    records_appended,
    /// Bytes of appended chunks, headers included.
    bytes_appended,
    /// Chunks that had been appended by an earlier try.
    chunks_duplicate,
    /// Chunks of streams with asynchronous replication whose answer did not wait for their copies.
    chunks_answered_early,
    /// Chunks refused, whatever the reason.
    chunks_refused,
    /// Of those: the arena stayed full, or the disk behind, until the request's time was up.
    chunks_no_room,
    /// Of those: the bytes did not match their checksum.
    chunks_checksum,
    /// Of those: chunks before them were missing, or the producer was fenced.
    chunks_out_of_sequence,
    /// Of those: the disk could not take them.
    chunks_disk,
    /// Times that a write stopped because the arena was full or the disk behind.
    writes_blocked,
    /// Write requests whose chunks were not durable when their time was up.
    writes_timed_out,
    /// Read requests answered.
    read_requests,
    /// Read requests that had to wait.
    reads_waited,
    /// Bytes of chunks in answers to reads.
    bytes_read,
    /// Frames pushed to subscriptions.
    pushes,
    /// Bytes of chunks pushed.
    bytes_pushed,
    /// Reads at a cursor that retention had taken.
    cursors_gone,
    /// Subscriptions that were opened.
    subscriptions_opened,
    /// Requests of all other kinds answered.
    other_requests,
    /// Requests that were answered with an error.
    requests_refused,
    /// Members that joined an application.
    members_joined,
    /// Members whose lease ran out.
    members_expired,
    /// Groups leased to members.
    groups_leased,
    /// Leases that members were asked to give back, for fairness.
    releases_asked,
    /// Offsets committed.
    offsets_committed,
    /// Offsets refused because the lease was not the member's any more.
    offsets_fenced,
    /// Times that an application's position had been taken by retention.
    positions_lost,
    /// Records that applications never saw because of that.
    records_lost,
    /// Times that the stream of committed offsets was written anew.
    snapshots_written,
    /// Sessions that are open (a gauge).
    sessions,
    /// Subscriptions that are open (a gauge).
    subscriptions,
}
