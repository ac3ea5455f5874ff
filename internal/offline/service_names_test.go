// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// --service takes namespace/name, or a name that one Service alone has, like `service show`.
func TestFindService(t *testing.T) {
	names := map[uint32]bpf.ServiceName{}
	for i, ref := range []service.Ref{{Namespace: "shop", Name: "web"}, {Namespace: "shop", Name: "dns"}, {Namespace: "default", Name: "dns"}} {
		ref.Kind = service.KindService
		name, err := codec.ServiceName(service.Port{Owner: ref, Name: "a", Protocol: service.TCP})
		if err != nil {
			t.Fatal(err)
		}
		names[uint32(i)] = name
	}
	for name, want := range map[string]string{
		"shop/web":    "shop/web",
		"web":         "shop/web",
		"dns":         "several Services have this name: give one of default/dns, shop/dns",
		"wbe":         `no such Service is in the tables, did you mean "web"?`,
		"shop/wbe":    `no such Service is in the tables, did you mean "shop/web"?`,
		"default/web": "no such Service is in the tables",
	} {
		got, err := FindService(names, name)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || strings.Contains(want, " ") != (err != nil) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
