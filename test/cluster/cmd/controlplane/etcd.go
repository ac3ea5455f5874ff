// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/url"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// newEtcdCommand runs an etcd with one member, which does not wait for the disk: a test's cluster need not
// survive its machine.
func newEtcdCommand() *cobra.Command {
	var folder, clients, peers string
	cmd := &cobra.Command{
		Use:           "etcd",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer cancel()
			etcd, err := embed.StartEtcd(etcdConfig(folder, clients, peers))
			if err != nil {
				return fmt.Errorf("etcd in %s: %w", folder, err)
			}
			defer etcd.Close()
			select {
			case <-stop.Done():
				return nil
			case err := <-etcd.Err():
				return fmt.Errorf("etcd in %s: %w", folder, err)
			}
		},
	}
	cmd.Flags().StringVar(&folder, "data-dir", "", "folder of its data")
	cmd.Flags().StringVar(&clients, "listen-client", "127.0.0.1:2379", "address and port for clients")
	cmd.Flags().StringVar(&peers, "listen-peer", "127.0.0.1:2380", "address and port for other members")
	cmd.MarkFlagRequired("data-dir")
	return cmd
}

func etcdConfig(folder, clients, peers string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = folder
	cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: clients}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: peers}}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.WarningUnaryRequestDuration = 300 * time.Millisecond // unset, every request causes a warning
	cfg.LogLevel = "warn"
	return cfg
}
