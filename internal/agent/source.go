// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/source"
	"beeline.io/beeline/internal/source/kube"
	"beeline.io/beeline/internal/source/manifest"
)

// newSource makes the source that is configured.
//
// An API server need not answer yet. The given apiServer learns where it is.
func newSource(config Config, version string, server *apiServer, log *slog.Logger) (source.Source, observe.Source, error) {
	if config.Manifests == "" {
		objects, err := kube.New(kube.Options{
			Kubeconfig: config.Kubeconfig, Version: version, NodeName: config.NodeName,
			ServiceProxyName: config.Service.ServiceProxyName, Dial: server.dial, Log: log,
		})
		if err != nil {
			return nil, observe.Source{}, err
		}
		log.Info("waiting for the API server's objects", "server", objects.Server(), "node", config.NodeName)
		return objects, observe.Source{Kind: "kubernetes", Location: objects.Server()}, nil
	}
	return manifest.New(config.Manifests), observe.Source{Kind: "manifests", Location: config.Manifests}, nil
}

// loadManifests reads manifests once, while the kernel verifies the programs. It is an error
// if they are bad, unless an earlier agent's programs serve.
func (a *Agent) loadManifests() <-chan error {
	bad := make(chan error, 1)
	objects, ok := a.objects.(*manifest.Source)
	if !ok {
		bad <- nil
		return bad
	}
	go func() {
		_, err := objects.Load()
		if err != nil {
			err = fmt.Errorf("nothing is attached, because the manifests cannot be used:\n%w", err)
		}
		bad <- err
	}()
	return bad
}

// noteSource keeps for the socket what an event says of the source, and logs the
// problems that are new.
func (a *Agent) noteSource(ev source.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := slices.Concat(a.source.Problems, a.source.Notes)
	a.source.Problems, a.source.Notes = nil, nil
	for _, p := range ev.Problems {
		text := p.String()
		to := &a.source.Problems
		if p.Harmless {
			to = &a.source.Notes
		}
		*to = append(*to, text)
		switch {
		case slices.Contains(old, text):
		case p.Warning:
			a.log.Warn(a.source.Kind + ": " + text)
		default:
			a.log.Error(a.source.Kind + ": " + text)
		}
	}
	if a.source.Errors > 0 && ev.Problems.Errors() == 0 {
		a.log.Info(a.source.Kind+": without errors again; the present state is in force", "location", a.source.Location)
	}
	a.source.Errors, a.source.Warnings = ev.Problems.Errors(), ev.Problems.Warnings()
	a.source.Synced = ev.Synced
	if ev.Synced && a.source.Errors == 0 {
		a.source.LastGood = time.Now()
	}
}

// sourceStatus is what is known of the source at present.
func (a *Agent) sourceStatus() observe.Source {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.source
	if remote, ok := a.objects.(source.Remote); ok {
		connection := remote.Remote()
		s.Connection = &connection
	}
	return s
}
