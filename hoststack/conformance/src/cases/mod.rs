// SPDX-License-Identifier: Apache-2.0

//! The cases, by subject.

mod bulk;
mod clones;
mod connections;
mod copies;
mod crossings;
mod earning;
mod ends;
mod events;
mod exec;
mod forks;
mod found;
mod handlers;
mod hostile;
mod instances;
mod interrupts;
mod kills;
mod numbers;
mod offers;
mod recalls;
mod refusals;
mod shortages;
mod sockmaps;
mod splices;
mod streams;
mod switch;
mod unseen;
mod waits;

pub struct Case {
    pub name: &'static str,
    pub run: fn(),
    pub expects: Expects,
}

/// What the library does in a case.
#[derive(PartialEq, Eq, Clone, Copy)]
pub enum Expects {
    /// Connections are on rings.
    Rings,
    /// They stay on the kernel.
    Kernel,
    /// They are on rings, and ends break them off because of impossible indices.
    Violations,
    /// One end has taken an offer, which did not come from the library.
    OneOffer,
}

/// Cases with connections that have to earn rings. In the others it asks for them after its first operation.
pub const EARNING: &[&str] = &[
    "short_connections",
    "earned_by_octets",
    "earned_by_a_send_that_waits",
    "earned_by_age",
    "earned_beside_readers",
    "earned_by_unequal_operations",
    "earned_by_late_acceptors",
    "earned_by_two_readers",
    "datagrams",
    "unresponsive_clients",
];

macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        pub const ALL: &[Case] = &[$($(
            Case { name: stringify!($name), run: $module::$name, expects: Expects::Rings },
        )*)*
            Case { name: "connect_and_addresses", run: connections::connect_and_addresses, expects: Expects::Kernel },
            Case { name: "peer_without_library", run: connections::peer_without_library, expects: Expects::Kernel },
            Case { name: "short_connections", run: earning::short_connections, expects: Expects::Kernel },
            Case { name: "datagrams", run: earning::datagrams, expects: Expects::Kernel },
            Case { name: "held_by_another", run: forks::held_by_another, expects: Expects::Kernel },
            Case { name: "unresponsive_clients", run: forks::unresponsive_clients, expects: Expects::Kernel },
            Case { name: "overwritten_header", run: hostile::overwritten_header, expects: Expects::Violations },
            Case { name: "wrong_offers", run: offers::wrong_offers, expects: Expects::OneOffer },
            Case { name: "offer_of_another_user", run: refusals::offer_of_another_user, expects: Expects::Kernel },
            Case { name: "offer_socket_of_another_user", run: refusals::offer_socket_of_another_user, expects: Expects::Kernel },
            Case { name: "without_memfd", run: refusals::without_memfd, expects: Expects::Kernel },
            Case { name: "without_eventfd", run: refusals::without_eventfd, expects: Expects::Kernel },
            Case { name: "without_netlink", run: refusals::without_netlink, expects: Expects::Kernel },
            Case { name: "without_unix_sockets", run: refusals::without_unix_sockets, expects: Expects::Kernel },
            Case { name: "passed_before_rings", run: copies::passed_before_rings, expects: Expects::Kernel },
        ];
    };
}

cases! {
    streams { all_calls, by_number, printed, flags, empty_and_full, message_lists, message_lists_that_wait, too_many_buffers, message_sent_in_part, files_and_pipes, queue_lengths, impossible_addresses }
    connections { families, listeners }
    ends { half_close, close_with_data, close_unread, linger_reset, shutdown_of_reading, peer_killed, writer_of_killed_peer }
    events { level, edge, oneshot, oneshot_of_nothing, exclusive, exclusive_for_room, modify, copied_descriptor, copies_added_in_turn, closed_while_copied, closed_in_child, poll_and_select, events_before_rings, added_before_connect, writable, full_after_the_end, many }
    instances { two_instances, two_connections, nested, moved_between_instances, awake_beside_asleep, awake_in_another_instance, nested_later, awake_in_child, closed_beside_its_connection, closed_while_waited, polled_at_first_by_many }
    interrupts { two_signals_at_once, cancelled }
    copies { duplicates, forked, forked_and_killed, forked_and_ended, forked_before_rings, closed_ranges, listed, executed, standard_output }
    exec { executed_functions, spawned, shells, executed_beside_waits, streams_of_the_c_library, passed, taken_by_pidfd }
    clones { copied_memory, served_by_child, grandchildren, cloned_on_a_stack, shared_memory, closed_by_vfork, shared_memory_beside, without_descriptors, threads_without_descriptors }
    handlers { sends_in_handler, receives_in_handler, waits_in_handler, left_by_handler, handlers_as_set, stopped_in_a_call, real_time }
    numbers { reconnected, reconnected_in_epoll, reconnected_before_rings, reconnected_by_others, connected_again, disconnected_unseen, number_used_again, number_added_again, number_replaced, number_passed, taken_before_rings, closed_by_io_uring, connected_with_data }
    waits { receive_time_limit, interrupted, restarted, threads_on_one_socket, wakes_from_other_thread }
    switch { switched_under_load, switched_at_an_edge, switched_while_full, switched_before_rings }
    crossings { kernel_then_ring, thread_behind_missing_octets, end_after_crossing, ring_then_kernel, kernel_ring_kernel, reset_after_ring, many_buffers }
    splices { splice_to_full_pipe, splice_to_last_slot, splice_waits, splice_to_full_socket, splice_ends, splice_named_pipes, splice_crossing, splice_proxy, sendfile_to_pipe }
    kills { killed_then_received, killed_then_sent, killed_then_polled, killed_then_asked, killed_under_epoll, killed_unasked, killed_while_waiting, killed_beside_another }
    shortages { epoll_without_watches, sleeper_without_watches, nested_without_watches, waits_without_descriptors, closed_without_descriptors }
    sockmaps { in_a_sockmap, past_tcp, offered_in_a_sockmap, ring_after_sockmap }
    found { no_octets, whole_events, one_edge, edge_behind_kernel, no_edge_of_room, after_shutdown, full_but_not_ended, shut_down_with_octets_in_flight, low_mark, error_after_octets, peek_of_all, octets_before_reset, shut_down_before_rings, reset_once, no_edge_of_known_room, edges_without_octets, edge_after_a_child, added_again_after_reset, error_after_all }
    hostile { wake_up_after_its_octets }
    forks { forked_server, forked_bulk, forked_while_asking, forked_and_shared }
    recalls { passed_unread, executed_unread, streams_unread, peer_stopped, peer_dead, peer_without_room, recalled_in_part, recalled_and_killed }
    earning { earned_by_octets, earned_by_a_send_that_waits, earned_by_age, earned_beside_readers, earned_by_unequal_operations, earned_by_late_acceptors, earned_by_two_readers }
    bulk { both_directions, many_writers }
}
