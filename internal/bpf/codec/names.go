// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"
	"strings"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// ServiceName encodes a port, for its row in the services table.
func ServiceName(key service.Port) (bpf.ServiceName, error) {
	name := bpf.ServiceName{Protocol: uint8(key.Protocol)}
	if key.Owner.Kind == service.KindPod {
		name.OwnerKind = bpf.OwnerPod
	}
	for _, f := range []struct {
		what, text string
		field      []byte
	}{
		{"namespace", key.Owner.Namespace, name.Namespace[:]},
		{"name", key.Owner.Name, name.Name[:]},
		{"port name", key.Name, name.Port[:]},
	} {
		if len(f.text) >= len(f.field) {
			return name, fmt.Errorf("%s: the %s has %d characters, more than %d", key.Owner, f.what, len(f.text), len(f.field)-1)
		}
		copy(f.field, f.text)
	}
	return name, nil
}

// PortOf is the inverse of ServiceName.
func PortOf(name bpf.ServiceName) service.Port {
	kind := service.KindService
	if name.OwnerKind == bpf.OwnerPod {
		kind = service.KindPod
	}
	return service.Port{
		Owner:    service.Ref{Kind: kind, Namespace: text(name.Namespace[:]), Name: text(name.Name[:])},
		Name:     text(name.Port[:]),
		Protocol: service.Protocol(name.Protocol),
	}
}

func text(field []byte) string {
	s, _, _ := strings.Cut(string(field), "\x00")
	return s
}
