// SPDX-License-Identifier: Apache-2.0

// Package deploy tests what an operator puts on a cluster: the image of `make image`, and the manifests of
// deploy/kubernetes. A real API server takes the manifests. What its DaemonSet describes runs in runc on a node
// of a lab, with the image's files, capabilities, mounts and the seccomp profile of containerd.
package deploy
