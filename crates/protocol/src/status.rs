//! What a response says about how it went.

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $retryable:literal, $could_duplicate:literal, $hint:literal;)+) => {
        /// How an operation, or one part of it, went. The numbers are never used again for something else: 1 to 99 are
        /// about frames and nodes, from 100 about streams and producers, from 200 about writes, from 300 about reads,
        /// from 400 about applications.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Status {
            $($(#[$doc])* $name = $number),+
        }

        impl Status {
            /// All of them, by number.
            pub const ALL: &'static [Status] = &[$(Status::$name),+];

            /// From the number in a frame.
            #[inline]
            pub fn from_u16(number: u16) -> Option<Status> {
                match number {
                    $($number => Some(Status::$name),)+
                    _ => None,
                }
            }

            /// Its name in documents, logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Status::$name => stringify!($name)),+ }
            }

            /// Whether the same request, sent again later, may go well without anybody changing it.
            pub fn retryable(self) -> bool {
                match self { $(Status::$name => $retryable),+ }
            }

            /// Whether the request may have taken effect all the same, so that sending it again may do it twice. Chunks
            /// with a producer id are safe: the broker recognises them.
            pub fn could_duplicate(self) -> bool {
                match self { $(Status::$name => $could_duplicate),+ }
            }

            /// What to do about it, for a person.
            pub fn hint(self) -> &'static str {
                match self { $(Status::$name => $hint),+ }
            }
        }
    };
}

statuses! {
    /// It went well.
    Ok = 0, false, false, "nothing to do";

    /// The frame or body does not follow the protocol. The connection is closed after it.
    Malformed = 1, false, false, "the client has a defect or is not a KerA client; compare its bytes with spec/";
    /// The operation is spoken, but not in this version.
    UnsupportedVersion = 2, false, false, "use a version in the range that Hello gave for the operation";
    /// The operation is not spoken.
    UnknownOperation = 3, false, false, "upgrade the server, or do without what needs this operation";
    /// The frame is larger than this side takes. The connection is closed after it.
    FrameTooLarge = 4, false, false, "send smaller requests, or raise frame_bytes_max on the server";
    /// The first frame of a connection was not `Hello`. The connection is closed after it.
    HelloExpected = 5, false, false, "send Hello first";
    /// A defect of the server; its log says more.
    Internal = 6, true, true, "look into the server's log; try again";
    /// The request's time was up before it was done.
    Timeout = 7, true, true, "try again; if it happens often, give more time or lower the load";
    /// The node is stopping.
    ShuttingDown = 8, true, true, "try again, on another connection";
    /// The node is starting and not ready for this.
    NotReady = 9, true, false, "try again in a moment; /readyz says what it waits for";
    /// A limit on connections, requests or bytes in flight is reached, or fewer nodes are live than copies need.
    Overloaded = 10, true, false, "try again later, or raise the limit on the server";
    /// A field's value is not allowed.
    InvalidArgument = 11, false, false, "change the field that the message names";
    /// The operation is known, but this node does not do it (yet, or with its configuration).
    NotSupported = 12, false, false, "do without, or configure the server for it";
    /// A limit on how many of something there may be is reached.
    LimitReached = 13, false, false, "remove some, or raise the limit that the message names";
    /// The cluster has declared this incarnation of the node lost. It joins again with the next.
    Fenced = 14, true, true, "ask another node who owns what, and go there; if none answers, most coordinators are away: start them";

    /// No such stream.
    UnknownStream = 100, false, false, "create it with `kera stream create`, or look for its name with `kera stream list`";
    /// A stream of that name exists.
    StreamExists = 101, false, false, "choose another name, or pass if_not_exists";
    /// The name does not follow the rules.
    InvalidName = 102, false, false, "use 1 to 249 of the characters a-z A-Z 0-9 . _ -";
    /// Options outside their limits, or that cannot be changed.
    InvalidOptions = 103, false, false, "change the options that the message names";
    /// No such streamlet in the stream.
    UnknownStreamlet = 104, false, false, "use a streamlet below the number that the stream has";
    /// No such lane in the streamlet.
    UnknownLane = 105, false, false, "use a lane below the number that the stream has";
    /// No such producer id was ever given.
    UnknownProducer = 106, false, false, "ask for an id with AllocateProducer";
    /// Another node owns the streamlet, or has the group. A chunk's result and a read's answer tell which if it is known.
    NotOwner = 107, true, false, "ask FindOwners who owns the streamlet, and send it there";

    /// The arena is full, and nothing could leave it in the time that the request gave.
    ArenaFull = 200, true, false, "try again later; readers or disks are behind, or the arena is too small for the load";
    /// The disk is full: nothing that must be durable can be taken.
    DiskFull = 201, true, true, "free disk space, or shorten retention";
    /// The disk fails.
    DiskFailed = 202, true, true, "look into the server's log and at the disk";
    /// The chunk's bytes do not match its checksum: they were changed on the way.
    ChunkChecksum = 203, true, false, "send the chunk again; if it happens again, look at memory and network hardware";
    /// The chunk is larger than the stream takes.
    ChunkTooLarge = 204, false, false, "make smaller chunks, or raise segment_bytes_max of the stream";
    /// The chunk does not follow its layout.
    ChunkMalformed = 205, false, false, "the client has a defect; compare its bytes with spec/chunk.json";
    /// A chunk of the same producer is missing before this one.
    SequenceGap = 206, false, false, "send the missing chunks first, from the sequence that base_ordinal tells";
    /// A higher epoch of the producer has written: this one is fenced.
    StaleEpoch = 207, false, false, "another producer has taken over this id; stop, or ask for the next epoch";
    /// The payload's kind is not taken.
    UnsupportedPayload = 208, false, false, "send KerA records, or a kind that the server takes";
    /// The chunk repeats one that is so old that what became of it is not known any more.
    SequenceTooOld = 209, false, false, "it was appended before; go on with the next chunk";

    /// What the cursor points at has been removed by retention; the answer tells the earliest cursor there is.
    CursorGone = 300, false, false, "go on from the cursor in the answer, or from the latest";
    /// The cursor points at nothing that ever was.
    CursorUnknown = 301, false, false, "find a cursor with Lookup";
    /// The cursor's position is not where a chunk starts.
    NotAChunkBoundary = 302, false, false, "go on from the start of the chunk, or find a cursor with Lookup";
    /// No such group.
    UnknownGroup = 303, false, false, "list the groups with AvailableGroups";
    /// The segment is on disk and cannot be read.
    SegmentUnreadable = 304, true, false, "look into the server's log and at the disk";
    /// No such subscription on this connection; it may just have ended.
    UnknownSubscription = 305, false, false, "subscribe again if it was not ended on purpose";
    /// Memory to load old data into is short, or as many requests of the connection wait as may.
    LoadPressure = 306, true, false, "try again; many readers are catching up at once, or many requests of the connection wait";
    /// The group's owner was lost, and the group is being rebuilt from its copies.
    Rebuilding = 307, true, false, "try again; `kera status` says how far it is";

    /// No such application.
    UnknownApplication = 400, false, false, "join it, or look for its name with ListApplications";
    /// No such member; its lease has run out.
    UnknownMember = 401, false, false, "join again";
    /// The lease is not the member's any more; nothing was committed for it.
    LeaseLost = 402, false, false, "drop what was read since the last commit, and ask for groups again";
    /// The application has members, and the operation needs it to have none.
    ApplicationActive = 403, true, false, "stop its consumers, or wait until their leases have run out";
}

/// How a message begins, or has it, that tells that most of the coordinators are away: no status tells that apart from what passes by itself. For whoever
/// advises a person, who has to do something then; programs go by the status.
pub const NO_MAJORITY: &str = "no majority of the coordinators";

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
