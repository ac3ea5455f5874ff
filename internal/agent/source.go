// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/cluster/source/kube"
	"beeline.io/beeline/internal/cluster/source/manifest"
	"beeline.io/beeline/internal/report/condition"
)

// newSource returns the configured source.
//
// The API server need not be reachable yet. The source records its addresses in the given apiServer.
func newSource(config Config, version string, server *apiServer, log *slog.Logger) (source.Source, api.Source, error) {
	if config.Manifests == "" {
		objects, err := kube.New(kube.Options{
			Kubeconfig: config.Kubeconfig, Version: version, NodeName: config.NodeName,
			ServiceProxyName: config.Service.ServiceProxyName, Dial: server.dial, Log: log,
		})
		if err != nil {
			return nil, api.Source{}, err
		}
		log.Info("waiting for the API server's objects", "server", objects.Server(), "node", config.NodeName)
		return objects, api.Source{Kind: "kubernetes", Location: objects.Server()}, nil
	}
	return newManifests(&config), api.Source{Kind: "manifests", Location: config.Manifests}, nil
}

func newManifests(config *Config) *manifest.Source {
	s := manifest.New(config.Manifests)
	if config.IgnoreAnnotations {
		s.IgnoreAnnotations()
	}
	return s
}

// loadManifests reads manifests once, while the kernel verifies the programs. Its channel returns an error if
// they are invalid.
func (a *Agent) loadManifests() <-chan error {
	bad := make(chan error, 1)
	objects, ok := a.source.(*manifest.Source)
	if !ok {
		bad <- nil
		return bad
	}
	go func() {
		_, err := objects.Load()
		if err != nil {
			err = fmt.Errorf("nothing is attached, because the manifests are invalid:\n%w", err)
		}
		bad <- err
	}()
	return bad
}

// noteSource stores the source's state for the socket, and logs new problems.
func (a *Agent) noteSource(ev source.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.sourceState.Problems
	a.sourceState.Problems = nil
	for _, p := range ev.Problems {
		problem := p.Condition()
		a.sourceState.Problems = append(a.sourceState.Problems, problem)
		if !slices.Contains(old, problem) {
			condition.KindOf(problem.Code).Log(a.log, a.sourceState.Kind+": "+p.String())
		}
	}
	if a.sourceState.Errors > 0 && ev.Problems.Errors() == 0 {
		a.log.Info(a.sourceState.Kind+": no errors any more; the current state is in effect", "location", a.sourceState.Location)
	}
	a.sourceState.Errors, a.sourceState.Warnings = ev.Problems.Errors(), ev.Problems.Warnings()
	a.sourceState.Synced = ev.Synced
	if ev.Synced && a.sourceState.Errors == 0 {
		a.sourceState.LastGood = time.Now()
	}
}

// sourceStatus returns the current state of the source.
func (a *Agent) sourceStatus() api.Source {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.sourceState
	if remote, ok := a.source.(source.Remote); ok {
		connection := remote.Remote()
		s.Connection = &connection
	}
	return s
}
