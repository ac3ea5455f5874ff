// SPDX-License-Identifier: Apache-2.0

//! All interleavings of two ends, by loom: no octet is read before it is written, and no wake-up is lost.
//!
//! RUSTFLAGS="--cfg loom" cargo test --release -p beeline-ring
#![cfg(loom)]

use beeline_ring::{Answer, Direction, Published, Recall};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Notify};
use loom::thread;

const CAPACITY: u64 = 2;

/// A direction with its octets, and the event of each end.
struct Shared {
    direction: Direction,
    octets: [UnsafeCell<u8>; CAPACITY as usize],
    consumer_event: Notify,
    producer_event: Notify,
}

// SAFETY: loom reports each access to the octets that is not ordered with another one.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Prints what a deadlock of loom means here, if a model panics.
struct Explained;

impl Drop for Explained {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "An interleaving of two ends fails. \"deadlock\": a thread (Blocked) sleeps for ever, although the octet or the \
                 room that it waits for is there: a wake-up is lost. \"Causality violation\": an octet is read before it is written."
            );
        }
    }
}

/// Runs all interleavings of the threads of a test.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let _explained = Explained;
    loom::model(f);
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            direction: Direction::default(),
            octets: Default::default(),
            consumer_event: Notify::new(),
            producer_event: Notify::new(),
        })
    }

    /// Publishes one octet if there is room.
    fn put(&self, tail: &mut u64, value: u8) -> Option<Published> {
        if self.direction.free(*tail, CAPACITY).unwrap() == 0 {
            return None;
        }
        // SAFETY: the octet is the producer's until it is published.
        self.octets[(*tail % CAPACITY) as usize].with_mut(|octet| unsafe { *octet = value });
        let published = self.direction.publish(*tail, *tail + 1).unwrap();
        if published == Published::Done {
            *tail += 1;
            if self.direction.wake_consumer() {
                self.consumer_event.notify();
            }
        }
        Some(published)
    }

    /// Receives one octet if there is one.
    fn take(&self, head: &mut u64) -> Option<u8> {
        if self.direction.available(*head, CAPACITY).unwrap().0 == 0 {
            return None;
        }
        // SAFETY: the octet is the consumer's until it is released.
        let value = self.octets[(*head % CAPACITY) as usize].with(|octet| unsafe { *octet });
        *head += 1;
        self.direction.release(*head);
        if self.direction.wake_producer() {
            self.producer_event.notify();
        }
        Some(value)
    }
}

fn receive(shared: &Shared, head: &mut u64) -> u8 {
    loop {
        if let Some(value) = shared.take(head) {
            return value;
        }
        shared.direction.consumer_waits();
        if shared.direction.available(*head, CAPACITY).unwrap().0 == 0 {
            // A wake-up that never comes is a deadlock, which loom reports.
            shared.consumer_event.wait();
        }
    }
}

fn send(shared: &Shared, tail: &mut u64, value: u8) {
    while shared.put(tail, value).is_none() {
        shared.direction.producer_waits();
        if shared.direction.free(*tail, CAPACITY).unwrap() == 0 {
            shared.producer_event.wait();
        }
    }
}

#[test]
fn a_sleeping_consumer_is_woken_by_the_next_octet() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let producer = thread::spawn(move || {
            let mut tail = 0;
            send(&other, &mut tail, 1);
        });
        assert_eq!(receive(&shared, &mut 0), 1);
        producer.join().unwrap();
    });
}

/// A worker that wakes and looks by itself does not take the flag of a thread that waits for the same octet.
#[test]
fn a_thread_is_woken_beside_a_worker_that_is_awake() {
    model(|| {
        let shared = Shared::new();
        let (producer, worker) = (shared.clone(), shared.clone());
        let producer = thread::spawn(move || send(&producer, &mut 0, 1));
        let worker = thread::spawn(move || {
            worker.direction.consumer_sleeps();
            worker.direction.consumer_is_awake();
        });
        assert_eq!(receive(&shared, &mut 0), 1);
        producer.join().unwrap();
        worker.join().unwrap();
    });
}

/// A worker that was awake meanwhile is woken when it sleeps again.
#[test]
fn a_worker_that_sleeps_again_is_woken() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let producer = thread::spawn(move || send(&other, &mut 0, 1));
        shared.direction.consumer_sleeps();
        shared.direction.consumer_is_awake();
        shared.direction.consumer_sleeps();
        if shared.direction.available(0, CAPACITY).unwrap().0 == 0 {
            shared.consumer_event.wait();
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_sleeping_producer_is_woken_when_there_is_room() {
    model(|| {
        let shared = Shared::new();
        let mut tail = 0;
        (1..=2).for_each(|value| send(&shared, &mut tail, value));
        let other = shared.clone();
        let consumer = thread::spawn(move || {
            let mut head = 0;
            assert_eq!(other.take(&mut head), Some(1));
        });
        send(&shared, &mut tail, 3);
        consumer.join().unwrap();
    });
}

/// Whoever closes the ring, both ends agree on which octets it has.
#[test]
fn an_octet_is_in_the_ring_or_refused_when_the_consumer_closes() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let producer = thread::spawn(move || {
            let mut tail = 0;
            other.put(&mut tail, 7)
        });
        shared.direction.close();
        let (inside, closed) = shared.direction.available(0, CAPACITY).unwrap();
        assert!(closed);
        let published = producer.join().unwrap();
        let accepted = published == Some(Published::Done);
        assert_eq!(
            accepted,
            inside == 1,
            "the producer's octet is accepted: {accepted}, octets in the closed ring: {inside}"
        );
    });
}

/// The octets before the ring are known before the first one in it.
#[test]
fn the_beginning_is_known_with_the_first_octet() {
    model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let producer = thread::spawn(move || {
            other.direction.begin(5);
            let mut tail = 0;
            send(&other, &mut tail, 1);
        });
        if shared.direction.available(0, CAPACITY).unwrap().0 > 0 {
            let start = shared.direction.start();
            assert_eq!(
                start,
                Some(5),
                "5 octets went by the kernel; the consumer sees the first octet in the ring, and the start {start:?}"
            );
        }
        producer.join().unwrap();
    });
}

/// A consumer that leaves has each octet that it has not received sent by the kernel's connection, before what the
/// producer sends next, or else receives it from the ring: none is lost, doubled or out of order.
#[test]
fn a_recalled_octet_is_sent_again_or_stays_in_the_ring() {
    model(|| {
        let shared = Shared::new();
        let mut tail = 0;
        send(&shared, &mut tail, 1);
        let (other, recall) = (shared.clone(), Arc::new(Recall::default()));
        let (asked, kernel) = (recall.clone(), Arc::new(loom::sync::Mutex::new(Vec::new())));
        let sent = kernel.clone();
        let producer = thread::spawn(move || {
            if other.put(&mut tail, 2) == Some(Published::Closed) {
                if asked.take() {
                    sent.lock().unwrap().push(1);
                    asked.done(tail);
                }
                sent.lock().unwrap().push(2);
            } else if asked.take() {
                other.direction.close();
                sent.lock().unwrap().extend([1, 2]);
                asked.done(tail);
            }
        });
        recall.ask();
        shared.direction.close();
        let withdrawn = recall.withdraw();
        producer.join().unwrap();
        let (inside, closed) = shared.direction.available(0, CAPACITY).unwrap();
        assert!(closed);
        let index = match recall.answer() {
            Answer::Done(index) => index,
            Answer::Taken => panic!("the producer has ended"),
            Answer::None => 0,
        };
        assert_eq!(
            withdrawn,
            index == 0,
            "the recall is withdrawn: {withdrawn}, octets that the producer recalled: {index}"
        );
        let mut received: Vec<u64> = kernel.lock().unwrap().iter().take(index as usize).copied().collect();
        received.extend(index + 1..=inside);
        received.extend(kernel.lock().unwrap().iter().skip(index as usize));
        assert_eq!(received, [1, 2], "octets 1 and 2 were sent, and these received; {index} of them were recalled to the kernel, withdrawn: {withdrawn}");
    });
}
