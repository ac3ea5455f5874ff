// SPDX-License-Identifier: Apache-2.0

package kubeevent

import (
	"beeline.io/beeline/internal/report/condition"
)

// kind is how a condition becomes an Event.
type kind struct {
	// reason is the code, except where kube-proxy has an Event for the same.
	reason, action string
	// everywhere: all nodes find the same, so few of them report it.
	everywhere bool
}

// kinds are the conditions that become Events, all of type Warning.
var kinds = map[condition.Code]kind{}

func init() {
	for _, k := range []struct {
		*condition.Kind
		kind
	}{
		// Of Services and Pods.
		{condition.HealthCheckNodePortNotServed, kind{reason: "FailedToStartServiceHealthcheck", action: "Listen"}}, // kube-proxy 1.36
		{condition.EndpointsLost, kind{action: "Resolve", everywhere: true}},
		{condition.AddressTaken, kind{action: "Resolve", everywhere: true}},
		{condition.PortNotUnique, kind{action: "Resolve", everywhere: true}},
		{condition.SCTPPortDiffers, kind{action: "Resolve", everywhere: true}},
		{condition.AnnotationInvalid, kind{action: "Resolve", everywhere: true}},
		{condition.AnnotationUnknown, kind{action: "Resolve", everywhere: true}},
		{condition.HostIPNotHere, kind{action: "Resolve"}},
		{condition.ObjectNotApplied, kind{action: "Program"}},
		{condition.ObjectLeftOut, kind{action: "Program"}},
		// Of the Node.
		{condition.ListenFailed, kind{action: "Listen"}},
		{condition.AgentStalled, kind{action: "Follow"}},
		{condition.ChangesLate, kind{action: "Program"}},
		{condition.DatapathDamaged, kind{action: "Repair"}},
		{condition.SelfProbeFailed, kind{action: "Probe"}},
		{condition.EdgeOff, kind{action: "Attach"}},
	} {
		if k.reason == "" {
			k.reason = string(k.Code)
		}
		kinds[k.Code] = k.kind
	}
}
