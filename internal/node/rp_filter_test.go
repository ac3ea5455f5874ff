// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"net"
	"os"
	"testing"
)

// The effective rp_filter of a device is the larger one of the device's and that of all.
func TestRPFilters(t *testing.T) {
	inNamespace(t, func() error {
		n, err := Follow()
		if err != nil {
			return err
		}
		if err := ip("link add d0 type veth peer name d1"); err != nil {
			return err
		}
		for _, c := range []struct{ all, d0, d1, want0, want1 uint8 }{{0, 0, 1, 0, 1}, {1, 0, 2, 1, 2}, {2, 1, 0, 2, 2}, {0, 2, 0, 2, 0}} {
			for name, value := range map[string]uint8{"all": c.all, "d0": c.d0, "d1": c.d1} {
				if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", fmt.Append(nil, value), 0o644); err != nil {
					return err
				}
			}
			got, err := n.RPFilters()
			if err != nil {
				return err
			}
			want := map[int]uint8{}
			for name, value := range map[string]uint8{"d0": c.want0, "d1": c.want1, "lo": c.all} {
				device, err := net.InterfaceByName(name)
				if err != nil {
					return err
				}
				want[device.Index] = value
			}
			for index := range got {
				if _, ok := want[index]; !ok { // devices that the kernel makes in each namespace, such as tunl0
					delete(got, index)
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%+v: %v; want %v", c, got, want)
			}
		}
		return nil
	})
}
