// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// tunnelConfig is the argument of the process that serves a tun device by WireGuard.
type tunnelConfig struct {
	Device   string `json:"device"`
	MTU      int    `json:"mtu"`
	Settings string `json:"settings"`
}

// startTunnels starts the processes of WireGuard on nodes whose kernel has none.
func (l *Lab) startTunnels(p *topologyPlan) error {
	for _, h := range l.hosts {
		o := p.host(h.Name).overlay
		if o == nil || o.network != NetworkWireGuard {
			continue
		}
		handle, link, err := h.OpenDevice(o.network.Device())
		if err != nil {
			return err
		}
		handle.Close()
		if link.Type() == "wireguard" {
			continue
		}
		if err := h.startTunnel(o); err != nil {
			return fmt.Errorf("host %s: WireGuard: %w", h.Name, err)
		}
	}
	return nil
}

// startTunnel returns when the tun device is served. The process ends as StartServer's does.
func (h *Host) startTunnel(o *overlayPlan) error {
	argument, err := json.Marshal(tunnelConfig{o.network.Device(), o.network.MTU(), o.settings()})
	if err != nil {
		return err
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer theirs.Close()
	cmd, err := h.helperCommand(h.lab.Temporary, helperTunnel, string(argument))
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{theirs} // helperFD
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait()
	theirs.Close()
	if err := awaitReady(ready); err != nil {
		cmd.Process.Kill()
		return err
	}
	return nil
}

// runTunnel serves until it is killed. It writes one line to helperFD as soon as it serves, which is empty or an
// error.
func runTunnel(argument string) error {
	setProcessName(helperTunnel)
	ready := os.NewFile(helperFD, "ready")
	var config tunnelConfig
	err := json.Unmarshal([]byte(argument), &config)
	if err == nil {
		err = config.serve()
	}
	if err != nil {
		fmt.Fprintln(ready, err)
		return err
	}
	fmt.Fprintln(ready)
	ready.Close()
	select {}
}

func (c *tunnelConfig) serve() error {
	link, err := tun.CreateTUN(c.Device, c.MTU)
	if err != nil {
		return err
	}
	wireGuard := device.NewDevice(link, conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	if err := wireGuard.IpcSet(c.Settings); err != nil {
		return err
	}
	return wireGuard.Up()
}
