// SPDX-License-Identifier: Apache-2.0

// Package assess derives the conditions of the agent and its datapath from their status.
package assess

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
)

// nearlyFull is the usage from which a table gets a warning.
const nearlyFull = 0.9

// unreachableAfter is how long an API server may be unreachable before that is a condition. A restart takes
// less.
const unreachableAfter = 30 * time.Second

// Status fills in Conditions from the rest of the status.
func Status(s *api.Status) {
	all := slices.Concat(ofAgent(s), ofSource(&s.Source), ofSync(s), ofObjects(s), ofSockets(s), ofHooks(s), ofHealth(s), ofOptOuts(s), s.ComponentConditions)
	for _, f := range s.Tables {
		if float64(f.Used) > nearlyFull*float64(f.Limit) {
			all = append(all, fullTable(f))
		}
	}
	s.Conditions = Placed(all)
}

func fullTable(f reconcile.Usage) condition.Condition {
	c := condition.TableNearlyFull.New("table %s is nearly full (%d of %d)", f.Table, f.Used, f.Limit).At(f.Table)
	if f.Flag == "" {
		return c.Do("remove unneeded objects; the size of this table is fixed")
	}
	return c.Do("raise --%s", f.Flag)
}

// ofAgent returns the conditions of the agent and of its environment.
func ofAgent(s *api.Status) (all condition.List) {
	switch {
	case s.Drain != nil && s.Drain.Running:
		all = append(all, draining(s.Drain))
	case s.Drain != nil && !s.Running:
		all = append(all, condition.DrainInterrupted.New("`beeline cleanup --drain` was ended half way, and no agent is running: new connections and flows pass to another proxy of the node; %s", left(s.Drain)))
	case !s.Running:
		all = append(all, condition.AgentNotRunning.New("no agent is running: %s, and changes do not take effect", serving(s)))
	case s.NoAnswerReason != "":
		all = append(all, condition.AgentNotAnswering.New("%s has the pins, but does not answer (%s): %s, and changes may not take effect", process(s), s.NoAnswerReason, serving(s)))
	}
	if s.Answered && !s.Sync.Synced {
		serves := "the tables of an earlier agent stay in use"
		switch {
		case len(s.Attachments) == 0:
			serves = "nothing is attached"
		case s.Drain != nil:
			serves = fmt.Sprintf("`beeline cleanup --drain` has withdrawn the Services, so new connections and flows pass to another proxy of the node; %s", left(s.Drain))
		}
		all = append(all, NotSynced(serves))
	}
	if s.OtherNetworkNamespace {
		all = append(all, condition.OtherNetworkNamespace.New("this command runs in another network namespace than the agent: it looks for devices in the wrong place"))
	}
	if s.NodeAddressMissing {
		all = append(all, NodeAddressMissing(s.Node))
	}
	if s.NodeUnknown {
		all = append(all, NodeUnknown(s.Node))
	}
	if s.NodeDeleted {
		all = append(all, NodeDeleted(s.Node))
	}
	if s.NodesWithoutPodCIDRs > 0 {
		all = append(all, NodesWithoutPodCIDRs(s.NodesWithoutPodCIDRs))
	}
	return all
}

// serving says what is served without an agent.
func serving(s *api.Status) string {
	if len(s.Attachments) == 0 && (s.Edge == nil || len(s.Edge.Devices) == 0) {
		return "no program is attached, so nothing is served"
	}
	return "the attached programs keep serving with the pinned tables"
}

// process names the agent by its pid, if it has one here.
func process(s *api.Status) string {
	if s.PID == 0 {
		return "an agent in another PID namespace"
	}
	return fmt.Sprintf("the agent, pid %d,", s.PID)
}

// NotSynced returns the condition that the source is not complete yet. serves says what is served until then.
func NotSynced(serves string) condition.Condition {
	return condition.NotSynced.New("no complete state has been read yet: %s", serves)
}

// NodeUnknown returns the condition that no Node object has this node's name.
func NodeUnknown(name string) condition.Condition {
	return condition.NodeUnknown.New("no Node is named %q: there are no NodePorts, and only endpoints that name it count as local", name).At("Node " + name)
}

// NodeAddressMissing returns the condition that no device here has an address of this node's Node.
func NodeAddressMissing(name string) condition.Condition {
	return condition.NodeAddressMissing.New("no device here has an address of Node %q", name).At("Node " + name)
}

// NodeDeleted returns the condition that this node's Node has been deleted.
func NodeDeleted(name string) condition.Condition {
	return condition.NodeDeleted.New("Node %s has been deleted: its last addresses, zone and podCIDRs stay in use until it is created again", name).At("Node " + name)
}

// NodesWithoutPodCIDRs returns the condition that n Nodes lack podCIDRs.
func NodesWithoutPodCIDRs(n int) condition.Condition {
	return condition.NodesWithoutPodCIDRs.New("Nodes without podCIDRs (%d): their pods count as clients outside the cluster, and externalTrafficPolicy applies to them", n)
}

// ofSource returns the conditions of the source.
func ofSource(s *api.Source) (all condition.List) {
	all = slices.Clone(s.Problems)
	c := s.Connection
	if c == nil || c.Connected || time.Since(c.Since) < unreachableAfter {
		return all
	}
	text := fmt.Sprintf("the API server has not answered for %s, and the agent sees no changes: the last state stays in use", time.Since(c.Since).Round(time.Second))
	if c.Error != "" {
		text += ": " + c.Error
	}
	return append(all, condition.SourceUnreachable.New("%s", text).At(s.Location))
}

// ofSync returns conditions for what the reconciler could not write to the tables.
func ofSync(s *api.Status) (all condition.List) {
	if s.Sync.Networks != "" {
		all = append(all, condition.NetworksNotApplied.New("not all ServiceCIDRs and pod networks could be written to the tables: %s", s.Sync.Networks))
	}
	if s.Sync.Balancers != "" {
		all = append(all, condition.BalancersNotApplied.New("packets of some balancers may be dropped, because their networks could not be written to the tables: %s", s.Sync.Balancers))
	}
	for _, p := range s.Sync.BothNetworks {
		all = append(all, condition.PodNetworkIsServiceCIDR.New("%s is both a ServiceCIDR and a pod network: it is treated as a ServiceCIDR, and pods there count as clients outside the cluster", p).At(p))
	}
	return all
}

// ofObjects returns the conditions of individual objects.
func ofObjects(s *api.Status) (all condition.List) {
	for i := range s.ObjectsWithProblems {
		all = append(all, s.ObjectsWithProblems[i].Conditions()...)
	}
	// The lists and the counts were not read at the same time.
	if s.Sync.Failing > 0 && !all.Has(condition.ObjectNotApplied) {
		all = append(all, condition.ObjectNotApplied.New("frontends that could not be written to the tables: %d", s.Sync.Failing))
	}
	if s.Sync.LeftOut > 0 && !all.Has(condition.ObjectLeftOut) && !all.Has(condition.ObjectNotApplied) {
		all = append(all, condition.ObjectLeftOut.New("objects that are not served, or only in part: %d", s.Sync.LeftOut))
	}
	return all
}

// ofSockets returns the conditions of sockets of this node and its pods.
func ofSockets(s *api.Status) (all condition.List) {
	if s.SocketTermination.LastError != "" {
		all = append(all, condition.SocketsNotEnded.New("sockets of removed backends may remain open: %s", s.SocketTermination.LastError))
	}
	for _, h := range s.PortConflicts {
		all = append(all, condition.PortHeld.New("%s: connections to it go to the Service or Pod", h).At(fmt.Sprintf("%s %s", h.Protocol, h.Address)))
	}
	if s.PortConflictsUnavailable != "" {
		all = append(all, condition.PortHoldersUnknown.New("cannot tell which sockets are bound to ports of Services and Pods: %s", s.PortConflictsUnavailable))
	}
	if s.BindProtectionUnavailable != "" {
		all = append(all, condition.BindNotProtected.New("%s", s.BindProtectionUnavailable))
	}
	return all
}

// ofHooks returns the conditions of attached programs and pins.
func ofHooks(s *api.Status) (all condition.List) {
	if s.UnreadablePins != "" {
		all = append(all, condition.PinsUnreadable.New("pins are missing; a running agent restores them within two seconds: %s", s.UnreadablePins))
	}
	if s.EdgeUnavailable != "" {
		all = append(all, condition.EdgeOff.New("%s", s.EdgeUnavailable))
	}
	if len(s.Attachments) < s.ExpectedAttachments {
		all = append(all, condition.HooksMissing.New("%d of %d hooks are attached", len(s.Attachments), s.ExpectedAttachments))
	}
	for _, a := range s.Attachments {
		if a.Detached {
			all = append(all, condition.HookDetached.New("hook %s is detached, because its cgroup is gone or another program detached it", a.Hook).At(fmt.Sprint(a.Hook)))
		}
	}
	return all
}

// maxNamed is the maximum number of backends that a condition names.
const maxNamed = 3

// ofHealth returns one condition per Service with backends that are down.
func ofHealth(s *api.Status) (all condition.List) {
	if s.Health == nil {
		return nil
	}
	byService := map[string][]string{}
	for _, b := range s.Health.Down {
		byService[b.Service] = append(byService[b.Service], fmt.Sprintf("%s/%s (%s)", b.Address, b.Protocol, b))
	}
	for name, down := range byService {
		kind := condition.BackendsDown
		if len(down) == s.Health.Services[name] && !hasProblem(s, "Service "+name, condition.AllBackendsDown) {
			kind = condition.AllBackendsDown
		}
		all = append(all, kind.New("backends that fail their health check: %d of %d: %s", len(down), s.Health.Services[name], someOf(down)).At("Service "+name))
	}
	return all
}

// hasProblem reports whether an object has a problem of a kind: its plan knows which ports and families are concerned.
func hasProblem(s *api.Status, object string, kind *condition.Kind) bool {
	return slices.ContainsFunc(s.ObjectsWithProblems, func(o reconcile.Status) bool { return o.Owner.String() == object && o.Problems.Has(kind) })
}

func someOf(names []string) string {
	if len(names) > maxNamed {
		return strings.Join(names[:maxNamed], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

// ofOptOuts returns conditions for pods that opted out of the socket shortcut but still use it. Opting out
// itself is no condition.
func ofOptOuts(s *api.Status) (all condition.List) {
	for _, p := range s.OptedOut.Pods {
		if p.Late {
			all = append(all, condition.PodNotFound.New("the pod has opted out of the socket shortcut, but still uses it, because its network namespace was not found: %s", p.Problem).
				At(fmt.Sprintf("Pod %s/%s", p.Namespace, p.Name)))
		}
	}
	if slices.ContainsFunc(s.OptedOut.Pods, func(p optout.Pod) bool { return !p.Found }) {
		all = append(all, s.OptedOut.Problems...)
	}
	return all
}

// draining returns the condition that the drain is running.
func draining(d *api.Drain) condition.Condition {
	process := fmt.Sprintf("pid %d", d.PID)
	if d.PID == 0 {
		process = "in another PID namespace"
	}
	return condition.Draining.New("`beeline cleanup --drain` is running (%s): new connections and flows pass to another proxy of the node; %s until they end, or until %s, when everything is detached",
		process, left(d), d.Until.Format(time.DateTime))
}

// left says how many flows are served in a drain.
func left(d *api.Drain) string {
	return fmt.Sprintf("the flows of clients that are known (%d) are served", d.Flows)
}
