// SPDX-License-Identifier: Apache-2.0

//! The octets of rings, and a program's buffers.

pub mod parts;
