// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A traceWorld is one paragraph of testdata/kube-proxy/traces.txt: the objects as seen by the node
// "here" at 192.0.2.1 and 2001:db8::1, and what happens to packets.
type traceWorld struct {
	zone          string
	masqueradeAll bool
	services      []*corev1.Service
	slices        []*discoveryv1.EndpointSlice
	// packets maps a destination to the results for each source, in traceSources' order.
	packets []tracePacketLine
}

type tracePacketLine struct{ destination, outcomes string }

// traceSources are the senders: a pod, the node, two outside clients.
var traceSources = map[bool][4]string{
	false: {"10.9.0.9", "192.0.2.1", "198.51.100.7", "203.0.113.77"},
	true:  {"fd01:9::9", "2001:db8::1", "2001:db8:5::7", "2001:db8:7::7"},
}

// parseTraceWorld reads lines such as
//
//	node zone=east masqueradeAll
//	service web type=NodePort clusterIP=10.0.0.1 port=http:80:TCP:30080 eTP=Local
//	slice web IPv4 http:8080:TCP | 10.1.0.1 here ready | 10.1.0.2 there terminating zone=west
//	packet 10.0.0.1:80/TCP: 10.1.0.1:8080 | ...
func parseTraceWorld(paragraph string) traceWorld {
	var w traceWorld
	for line := range strings.Lines(paragraph) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "node":
			for _, word := range strings.Fields(rest) {
				key, value, _ := strings.Cut(word, "=")
				w.masqueradeAll = w.masqueradeAll || key == "masqueradeAll"
				if key == "zone" {
					w.zone = value
				}
			}
		case "service":
			w.services = append(w.services, parseTraceService(strings.Fields(rest)))
		case "slice":
			w.slices = append(w.slices, parseTraceSlice(strconv.Itoa(len(w.slices)), strings.Split(rest, " | ")))
		case "packet":
			destination, outcomes, _ := strings.Cut(rest, ": ")
			w.packets = append(w.packets, tracePacketLine{destination, outcomes})
		}
	}
	return w
}

func parseTraceService(words []string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: words[0]}}
	s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		list := strings.Split(value, ",")
		switch key {
		case "type":
			s.Spec.Type = corev1.ServiceType(value)
		case "clusterIP":
			s.Spec.ClusterIP, s.Spec.ClusterIPs = list[0], list
			for _, ip := range list {
				family := corev1.IPv4Protocol
				if strings.Contains(ip, ":") {
					family = corev1.IPv6Protocol
				}
				s.Spec.IPFamilies = append(s.Spec.IPFamilies, family)
			}
		case "port": // name:port:protocol:nodePort
			f := strings.Split(value, ":")
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: f[0], Port: number(f[1]), Protocol: corev1.Protocol(f[2]), NodePort: number(f[3]),
			})
		case "ingress", "proxyIngress":
			mode := corev1.LoadBalancerIPModeVIP
			if key == "proxyIngress" {
				mode = corev1.LoadBalancerIPModeProxy
			}
			for _, ip := range list {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
			}
		case "externalIPs":
			s.Spec.ExternalIPs = list
		case "sources":
			s.Spec.LoadBalancerSourceRanges = list
		case "eTP":
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(value)
		case "iTP":
			policy := corev1.ServiceInternalTrafficPolicy(value)
			s.Spec.InternalTrafficPolicy = &policy
		case "affinity":
			seconds := number(value)
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	return s
}

func parseTraceSlice(name string, fields []string) *discoveryv1.EndpointSlice {
	head := strings.Fields(fields[0])
	port := strings.Split(head[2], ":")
	portName, portNumber, portProtocol := port[0], number(port[1]), corev1.Protocol(port[2])
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "slice" + name, Labels: map[string]string{discoveryv1.LabelServiceName: head[0]}},
		AddressType: discoveryv1.AddressType(head[1]),
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &portNumber, Protocol: &portProtocol}},
	}
	for _, f := range fields[1:] {
		words := strings.Fields(f)
		e := discoveryv1.Endpoint{Addresses: words[:1], Hints: &discoveryv1.EndpointHints{}}
		yes, no := true, false
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "here", "there":
				e.NodeName = &key
			case "ready":
				e.Conditions.Ready = &yes
			case "notready":
				e.Conditions.Ready = &no
			case "notserving":
				e.Conditions.Serving = &no
			case "terminating":
				e.Conditions.Terminating = &yes
			case "zone":
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: value})
			case "node":
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: value})
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func number(s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		panic(err)
	}
	return int32(n)
}
