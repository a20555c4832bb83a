//! The few calls of librdkafka that the load needs, with ownership made clear, and creating and deleting topics.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use rdkafka_sys as sys;
use sys::RDKafkaErrorCode as Code;
use sys::bindings as raw;

use crate::Load;

const ERROR_BYTES: usize = 512;

/// `name=value` pairs for `rd_kafka_conf_set`.
pub(crate) type Properties = Vec<(String, String)>;

/// One librdkafka instance, destroyed on drop.
pub(crate) struct Client(pub(crate) *mut raw::rd_kafka_t);

// SAFETY: librdkafka's handles may be used from any thread.
unsafe impl Send for Client {}
// SAFETY: as above; the library locks inside.
unsafe impl Sync for Client {}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the handle came from rd_kafka_new and nothing uses it after its owner is gone.
        unsafe { raw::rd_kafka_destroy(self.0) }
    }
}

/// Called for every message that was delivered or given up.
pub(crate) type DeliveryReport =
    unsafe extern "C" fn(*mut raw::rd_kafka_t, *const raw::rd_kafka_message_t, *mut c_void);

/// Checks the form of `name=value` settings from the command line.
pub(crate) fn pairs(settings: &[String]) -> Result<Properties, String> {
    settings
        .iter()
        .map(|setting| {
            let (name, value) = setting.split_once('=').ok_or(format!("`{setting}` is not name=value"))?;
            Ok((name.to_owned(), value.to_owned()))
        })
        .collect()
}

impl Client {
    /// A producer whose delivery reports go to `report` with `opaque`, which must outlive the client.
    pub(crate) fn producer(
        properties: &Properties,
        report: Option<DeliveryReport>,
        opaque: *mut c_void,
    ) -> Result<Client, String> {
        let conf = configuration(properties)?;
        if let Some(report) = report {
            // SAFETY: `conf` is live and owned here.
            unsafe {
                raw::rd_kafka_conf_set_dr_msg_cb(conf, Some(report));
                raw::rd_kafka_conf_set_opaque(conf, opaque);
            }
        }
        Client::create(sys::rd_kafka_type_t::RD_KAFKA_PRODUCER, conf)
    }

    /// A consumer that polls everything from one queue.
    pub(crate) fn consumer(properties: &Properties) -> Result<Client, String> {
        let client = Client::create(sys::rd_kafka_type_t::RD_KAFKA_CONSUMER, configuration(properties)?)?;
        // SAFETY: the handle is live.
        unsafe { raw::rd_kafka_poll_set_consumer(client.0) };
        Ok(client)
    }

    fn create(kind: sys::rd_kafka_type_t, conf: *mut raw::rd_kafka_conf_t) -> Result<Client, String> {
        let mut error = [0 as c_char; ERROR_BYTES];
        // SAFETY: `conf` is live and taken over on success; `error` is writable for its length.
        let handle = unsafe { raw::rd_kafka_new(kind, conf, error.as_mut_ptr(), error.len()) };
        if handle.is_null() {
            // SAFETY: on failure the configuration stays ours.
            unsafe { raw::rd_kafka_conf_destroy(conf) };
            return Err(text(&error));
        }
        Ok(Client(handle))
    }

    /// Messages that are still queued or in flight.
    pub(crate) fn outstanding(&self) -> i32 {
        // SAFETY: the handle is live.
        unsafe { raw::rd_kafka_outq_len(self.0) }
    }

    /// Gives messages up, which `flags` names; their delivery reports say so.
    pub(crate) fn purge(&self, flags: i32) {
        // SAFETY: the handle is live.
        unsafe { raw::rd_kafka_purge(self.0, flags) };
    }

    /// Serves delivery reports for up to `timeout_ms`.
    pub(crate) fn poll(&self, timeout_ms: i32) {
        // SAFETY: the handle is live.
        unsafe { raw::rd_kafka_poll(self.0, timeout_ms) };
    }
}

/// A topic of a producer, destroyed on drop, which must come before the client's.
pub(crate) struct Topic(pub(crate) *mut raw::rd_kafka_topic_t);

impl Topic {
    pub(crate) fn new(client: &Client, name: &str) -> Result<Topic, String> {
        let name = c_string(name)?;
        // SAFETY: the handle is live; no topic configuration is given.
        let topic = unsafe { raw::rd_kafka_topic_new(client.0, name.as_ptr(), ptr::null_mut()) };
        if topic.is_null() { Err(format!("no topic handle for {name:?}")) } else { Ok(Topic(topic)) }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        // SAFETY: the handle came from rd_kafka_topic_new and is owned here.
        unsafe { raw::rd_kafka_topic_destroy(self.0) }
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("`{text}` holds a zero byte"))
}

/// The library's words for an error code.
pub(crate) fn error_name(code: sys::rd_kafka_resp_err_t) -> String {
    // SAFETY: the library returns a static string for every code.
    unsafe { CStr::from_ptr(raw::rd_kafka_err2str(code)) }.to_string_lossy().into_owned()
}

fn text(buffer: &[c_char]) -> String {
    // SAFETY: the library ends what it writes into an error buffer with a zero.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()
}

fn configuration(properties: &Properties) -> Result<*mut raw::rd_kafka_conf_t, String> {
    // SAFETY: makes an object that the caller owns.
    let conf = unsafe { raw::rd_kafka_conf_new() };
    for (name, value) in properties {
        let mut error = [0 as c_char; ERROR_BYTES];
        let (name_c, value_c) = (c_string(name)?, c_string(value)?);
        // SAFETY: all pointers are to live, zero-ended strings; `error` is writable for its length.
        let outcome =
            unsafe { raw::rd_kafka_conf_set(conf, name_c.as_ptr(), value_c.as_ptr(), error.as_mut_ptr(), error.len()) };
        if outcome != sys::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK {
            // SAFETY: `conf` is ours.
            unsafe { raw::rd_kafka_conf_destroy(conf) };
            return Err(format!("{name}={value}: {}", text(&error)));
        }
    }
    Ok(conf)
}

/// Creates the load's topics and waits until the broker knows them.
pub(crate) fn create_topics(load: &Load) -> Result<(), String> {
    let client = admin(load)?;
    let settings = pairs(&load.topic_properties)?;
    let mut topics = Vec::new();
    for name in load.topic_names() {
        let (name_c, mut error) = (c_string(&name)?, [0 as c_char; ERROR_BYTES]);
        // SAFETY: the name is zero-ended and copied by the library; `error` is writable for its length.
        let topic = unsafe {
            raw::rd_kafka_NewTopic_new(
                name_c.as_ptr(),
                load.partitions,
                load.replication,
                error.as_mut_ptr(),
                error.len(),
            )
        };
        if topic.is_null() {
            return Err(text(&error));
        }
        for (name, value) in &settings {
            let (name, value) = (c_string(name)?, c_string(value)?);
            // SAFETY: the topic is live; the library copies both strings.
            unsafe { raw::rd_kafka_NewTopic_set_config(topic, name.as_ptr(), value.as_ptr()) };
        }
        topics.push(topic);
    }
    let result = with_queue(&client, |queue| {
        // SAFETY: every pointer in `topics` is live until the destroy below.
        unsafe { raw::rd_kafka_CreateTopics(client.0, topics.as_mut_ptr(), topics.len(), ptr::null(), queue) };
    });
    // SAFETY: the library has copied what it needed; each topic is destroyed once.
    unsafe { raw::rd_kafka_NewTopic_destroy_array(topics.as_mut_ptr(), topics.len()) };
    result
}

/// Deletes the load's topics.
pub(crate) fn delete_topics(load: &Load) -> Result<(), String> {
    let client = admin(load)?;
    let mut topics = Vec::new();
    for name in load.topic_names() {
        // SAFETY: the name is zero-ended and copied by the library.
        topics.push(unsafe { raw::rd_kafka_DeleteTopic_new(c_string(&name)?.as_ptr()) });
    }
    let result = with_queue(&client, |queue| {
        // SAFETY: every pointer in `topics` is live until the destroy below.
        unsafe { raw::rd_kafka_DeleteTopics(client.0, topics.as_mut_ptr(), topics.len(), ptr::null(), queue) };
    });
    // SAFETY: the library has copied what it needed; each topic is destroyed once.
    unsafe { raw::rd_kafka_DeleteTopic_destroy_array(topics.as_mut_ptr(), topics.len()) };
    result
}

fn admin(load: &Load) -> Result<Client, String> {
    Client::producer(&vec![("bootstrap.servers".into(), load.bootstrap.clone())], None, ptr::null_mut())
}

/// Runs an admin request and turns its event, and the outcome of each topic in it, into a result.
fn with_queue(client: &Client, request: impl FnOnce(*mut raw::rd_kafka_queue_t)) -> Result<(), String> {
    // SAFETY: the handle is live; the queue is destroyed below, after the event from it.
    let queue = unsafe { raw::rd_kafka_queue_new(client.0) };
    request(queue);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut result = Err("the broker did not answer an admin request within 60 s".to_owned());
    while Instant::now() < deadline {
        // SAFETY: the queue is live; a returned event is ours to destroy.
        let event = unsafe { raw::rd_kafka_queue_poll(queue, 1000) };
        if !event.is_null() {
            result = admin_outcome(event);
            // SAFETY: the event is ours, and `admin_outcome` kept nothing of it.
            unsafe { raw::rd_kafka_event_destroy(event) };
            break;
        }
    }
    // SAFETY: the queue is ours.
    unsafe { raw::rd_kafka_queue_destroy(queue) };
    result
}

fn admin_outcome(event: *mut raw::rd_kafka_event_t) -> Result<(), String> {
    // SAFETY: the event is live; the arrays and strings belong to it and are read before it is destroyed.
    unsafe {
        let code = raw::rd_kafka_event_error(event);
        if Code::from(code) != Code::NoError {
            return Err(CStr::from_ptr(raw::rd_kafka_event_error_string(event)).to_string_lossy().into_owned());
        }
        let mut count = 0;
        let created = raw::rd_kafka_event_CreateTopics_result(event);
        let topics = if created.is_null() {
            raw::rd_kafka_DeleteTopics_result_topics(raw::rd_kafka_event_DeleteTopics_result(event), &mut count)
        } else {
            raw::rd_kafka_CreateTopics_result_topics(created, &mut count)
        };
        for &topic in std::slice::from_raw_parts(topics, count) {
            let code = raw::rd_kafka_topic_result_error(topic);
            if Code::from(code) != Code::NoError {
                let name = CStr::from_ptr(raw::rd_kafka_topic_result_name(topic)).to_string_lossy();
                return Err(format!("topic {name}: {}", error_name(code)));
            }
        }
    }
    Ok(())
}
