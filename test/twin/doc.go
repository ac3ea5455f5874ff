// SPDX-License-Identifier: Apache-2.0

// Package twin sends the same frames into two equal labs, one whose node has a shortcut and one whose node has the
// kernel's stack alone, and compares what arrives at every end: octets, MAC addresses, packet types, and the
// metadata of checksums and segmentation. A shortcut may differ from the stack in speed, and in nothing else.
package twin
