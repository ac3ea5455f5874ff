// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the alert rules and the dashboard in deploy/ with Prometheus and promtool, which `make
// monitoring` builds from their module. It is a module of its own, because Prometheus is large.
package monitoring
