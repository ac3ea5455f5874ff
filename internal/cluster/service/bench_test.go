// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// bigCluster has 5,000 Services of 10 endpoints each, half of them dual stack, every tenth a NodePort, and 200
// nodes.
func bigCluster() []Change {
	var objects []Object
	for i := range 200 {
		name := fmt.Sprintf("node%d", i)
		if i == 0 {
			name = "here"
		}
		objects = append(objects, &Node{Name: name, Addresses: addrs(fmt.Sprintf("192.168.%d.1", i), fmt.Sprintf("2001:db8::%x", i+1))})
	}
	for i := range 5000 {
		name := fmt.Sprintf("service-%d", i)
		options := []serviceOption{clusterIP(fmt.Sprintf("10.%d.%d.1", i/250, i%250))}
		if i%2 == 0 {
			options[0] = clusterIP(fmt.Sprintf("10.%d.%d.1", i/250, i%250), fmt.Sprintf("fd00::%x", i+1))
		}
		if i%10 == 0 {
			options = append(options, nodePort(int32(20000+i)))
		}
		objects = append(objects, service(name, options...), bigSlice(i, 10, false))
		if i%2 == 0 {
			objects = append(objects, bigSlice(i, 10, true))
		}
	}
	return changes(objects...)
}

func bigSlice(service, n int, v6 bool) *EndpointSlice {
	var lines []string
	for i := range n {
		address := fmt.Sprintf("10.%d.%d.%d", 100+service/250, service%250, i+1)
		if v6 {
			address = fmt.Sprintf("fd01:%x::%x", service, i+1)
		}
		lines = append(lines, address+[]string{" here", " there"}[i%2])
	}
	options := []sliceOption{of(fmt.Sprintf("service-%d", service))}
	name := fmt.Sprintf("service-%d-4", service)
	if v6 {
		options, name = append(options, ipv6), fmt.Sprintf("service-%d-6", service)
	}
	return slice(name, lines, options...)
}

// BenchmarkColdStart measures one Apply of all objects. The heap figures are the size of the objects, and what
// the Cluster adds.
func BenchmarkColdStart(b *testing.B) {
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	empty := heap()
	all := bigCluster()
	objects := heap()
	var table *Cluster
	for b.Loop() {
		table = NewCluster(testConfig())
		if d := table.Apply(all); len(d.Plans) != 5000 {
			b.Fatal(len(d.Plans))
		}
	}
	b.ReportMetric(objects-empty, "objects-MiB")
	b.ReportMetric(heap()-objects, "table-MiB")
	runtime.KeepAlive(table)
	runtime.KeepAlive(all)
}

// BenchmarkEndpointChange adds and removes an endpoint in the big cluster.
func BenchmarkEndpointChange(b *testing.B) {
	table := NewCluster(testConfig())
	table.Apply(bigCluster())
	less, more := changes(bigSlice(42, 9, false)), changes(bigSlice(42, 10, false))
	for b.Loop() {
		for _, c := range [][]Change{less, more} {
			if d := table.Apply(c); d.Resolved != 1 || len(d.Plans) != 1 {
				b.Fatal(d.Resolved)
			}
		}
	}
}

// BenchmarkOtherNodeChange updates the object of another node, as its heartbeat does.
func BenchmarkOtherNodeChange(b *testing.B) {
	config := testConfig()
	config.RefuseForeignExternalIPs = true
	table := NewCluster(config)
	table.Apply(bigCluster())
	beat := changes(&Node{Name: "node7", Addresses: addrs("192.168.7.1", "2001:db8::8")})
	for b.Loop() {
		if d := table.Apply(beat); d.Resolved != 0 {
			b.Fatal(d.Resolved)
		}
	}
}

// BenchmarkLargeService changes an endpoint of a Service with 5,000 endpoints in 50 slices.
func BenchmarkLargeService(b *testing.B) {
	table := cluster(testConfig(), service("web"))
	slices := make([]*EndpointSlice, 50)
	for i := range slices {
		slices[i] = bigSlice(i, 100, false)
		slices[i].Service = "web"
		table.Apply(changes(slices[i]))
	}
	less := *slices[7]
	less.Endpoints = less.Endpoints[1:]
	for b.Loop() {
		table.Apply(changes(&less))
		table.Apply(changes(slices[7]))
	}
}

// BenchmarkManyPorts adds and removes an endpoint of a Service with many ports and 20 endpoints:
// ten times as many ports should take ten times as long.
func BenchmarkManyPorts(b *testing.B) {
	check := note(AnnotationHealthCheck, "tcp")
	for _, c := range []struct {
		name    string
		options []serviceOption
	}{
		{"clusterIP", nil},
		{"loadBalancer", []serviceOption{loadBalancer(vip), externalIPs(webIP)}},
		{"checked", []serviceOption{check}},
	} {
		for _, n := range []int{300, 3000} {
			b.Run(fmt.Sprintf("%s/ports=%d", c.name, n), func(b *testing.B) { benchmarkManyPorts(b, n, c.options) })
		}
	}
}

func benchmarkManyPorts(b *testing.B, n int, options []serviceOption) {
	var of []corev1.ServicePort
	var named []discoveryv1.EndpointPort
	for i := range n {
		name, port := fmt.Sprintf("port-%d", i), int32(1000+i)
		of = append(of, corev1.ServicePort{Name: name, Port: port})
		named = append(named, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprintf("10.1.0.%d here", i+1))
	}
	allPorts := func(s *discoveryv1.EndpointSlice) { s.Ports = named }
	table := cluster(testConfig(), service("web", append(options, ports(of...))...))
	less, more := changes(slice("web-1", lines[1:], allPorts)), changes(slice("web-1", lines, allPorts))
	table.Apply(less)
	for b.Loop() {
		for _, c := range [][]Change{more, less} {
			if d := table.Apply(c); d.Resolved != 1 || len(d.Plans) != 1 {
				b.Fatal(d.Resolved)
			}
		}
	}
}
