// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/service"
)

// Paths of the socket's HTTP interface. Each answers a GET with JSON.
const (
	StatusPath = "/v1/status" // inspect.Status
	TablesPath = "/v1/tables" // inspect.Tables
	// CountedTablesPath is TablesPath with the edge's counters of each Service.
	CountedTablesPath = TablesPath + "/counted"
	// BackendsPath returns inspect.Tables with the backends and their Services, and frontends
	// without backends.
	BackendsPath = "/v1/backends"
	MetricsPath  = "/v1/metrics" // []inspect.Metric, of all components
)

// ServicePath returns TablesPath for one object, named namespace/name or name.
func ServicePath(name string) string { return TablesPath + "?service=" + url.QueryEscape(name) }

// listen creates the unix socket, accessible only to root. It replaces the socket of an earlier
// agent, which is not running because this one holds the lock of the bpffs directory.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("--agent-socket: %w", err)
	}
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("--agent-socket %s: another agent answers there: give this one its own --agent-socket", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--agent-socket %s: the path exists and is not a socket: remove it or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--agent-socket: %w", err)
		}
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--agent-socket: %w", err)
	}
	return l, nil
}

// maxSocketPath is the size of sun_path (unix(7)) without the terminating zero.
const maxSocketPath = 107

// RemoveSocket removes the socket of a killed agent, and the default directory if it is then empty. It keeps a
// socket on which an agent listens, possibly one with another bpffs directory.
func RemoveSocket(path string) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		os.Remove(path)
	}
	os.Remove(filepath.Dir(DefaultSocket)) // fails if the directory is not empty
}

// answer serves requests until ctx ends.
func (a *Agent) answer(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	answer(mux, StatusPath, a.status)
	answer(mux, CountedTablesPath, a.countedTables)
	mux.HandleFunc("GET "+TablesPath, func(w http.ResponseWriter, r *http.Request) {
		reply(w, r, func(ctx context.Context) (*inspect.Tables, error) {
			return a.tables(ctx, inspect.Scope{Service: r.URL.Query().Get("service")})
		})
	})
	answer(mux, BackendsPath, func(ctx context.Context) (*inspect.Tables, error) {
		return a.tables(ctx, inspect.Scope{Outline: true, Owners: true})
	})
	answer(mux, MetricsPath, func(context.Context) ([]inspect.Metric, error) { return a.components.Metrics() })
	watchers := newWatchers(a.datapath, a.log)
	defer watchers.close()
	mux.HandleFunc("GET "+EventsPath, watchers.stream)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func answer[T any](mux *http.ServeMux, path string, ask func(context.Context) (T, error)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { reply(w, r, ask) })
}

// reply answers with the value that ask returns. A disconnect of the client cancels ask.
func reply[T any](w http.ResponseWriter, r *http.Request, ask func(context.Context) (T, error)) {
	value, err := ask(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value) // an error means that the client has disconnected
}

// tables reads the tables and adds the state of each object. Objects without table entries have no frontends.
func (a *Agent) tables(ctx context.Context, scope inspect.Scope) (*inspect.Tables, error) {
	tables, err := inspect.ReadScope(ctx, a.datapath.Tables, scope)
	if err != nil {
		return nil, err
	}
	tables.OutsideServed = datapath.HasEdge(a.config.BPFFS)
	if scope.Service != "" || scope.Owners {
		if err := tables.AddDraining(a.config.BPFFS, scope); err != nil {
			return nil, err
		}
	}
	if scope.Service != "" {
		names, err := a.datapath.Tables.Services.All()
		if err != nil {
			return nil, err
		}
		if err := tables.AddConnections(a.config.BPFFS, names); err != nil {
			return nil, err
		}
	}
	at := map[service.Ref]int{}
	for i := range tables.Services {
		at[tables.Services[i].Ref()] = i
	}
	for _, st := range a.syncer.Status() {
		if !scope.Wants(st.Owner) {
			continue
		}
		i, ok := at[st.Owner]
		if !ok {
			i = len(tables.Services)
			tables.Services = append(tables.Services, inspect.Service{
				Kind: st.Owner.Kind, Namespace: st.Owner.Namespace, Name: st.Owner.Name, Frontends: []inspect.Frontend{},
			})
		}
		s := &tables.Services[i]
		s.State, s.Reasons, s.Problems, s.Refusals = st.State, st.Reasons, st.Problems, st.Refusals
		s.Health = a.checks(st.Owner)
		if scope.Service != "" {
			s.AddDown(s.Health)
		}
	}
	if scope.Owners {
		tables.AddDown(a.healthStatus())
	}
	return tables, nil
}

func (a *Agent) countedTables(ctx context.Context) (*inspect.Tables, error) {
	tables, err := a.tables(ctx, inspect.Scope{})
	if err != nil {
		return nil, err
	}
	names, err := a.datapath.Tables.Services.All()
	if err != nil {
		return nil, err
	}
	if err := tables.AddConnections(a.config.BPFFS, names); err != nil {
		return nil, err
	}
	return tables, tables.AddCounters(a.config.BPFFS, names)
}

func (a *Agent) status(ctx context.Context) (*inspect.Status, error) {
	tables, err := inspect.ReadScope(ctx, a.datapath.Tables, inspect.Scope{Outline: true})
	if err != nil {
		return nil, err
	}
	s := inspect.ReadStatus(a.config.BPFFS, a.version, tables)
	if s.Tables, err = a.syncer.Usage(); err != nil {
		return nil, err
	}
	if s.PortConflicts, err = inspect.PortConflicts(tables); err != nil {
		s.PortConflictsUnknown = err.Error()
	}
	a.completeStatus(s)
	return s, nil
}

// completeStatus adds what only the agent knows, and the conditions.
func (a *Agent) completeStatus(s *inspect.Status) {
	var err error
	s.Running, s.Answered, s.PID, s.Started = true, true, os.Getpid(), a.started
	s.Node, s.Cgroup, s.Hooks = a.config.NodeName, a.datapath.CgroupPath(), a.datapath.Hooks()
	if s.Attachments, err = a.datapath.Attachments(); err != nil {
		s.Unreadable = err.Error()
	}
	s.Algorithm, s.TableSize = a.config.Service.Algorithm, a.config.Service.TableSize
	s.DSR, s.DSRHybrid = a.config.Service.DSR, a.config.Service.DSRHybrid
	s.Sync = a.syncer.Stats()
	s.Objects = a.syncer.Unsettled()
	a.components.Status(s)
	s.ComponentConditions = append(s.ComponentConditions, slices.Concat(a.endpoints.conditions(), a.healthConditions())...)
	a.orphanSliceStatus(s)
	s.Health = a.healthStatus()
	s.Source = a.sourceStatus()
	a.mu.Lock()
	s.UnknownNode, s.NodeDeleted, s.NoOwnAddress = a.unknownNode, a.nodeDeleted, a.noOwnAddress
	s.UnclassifiedPods = a.unclassifiedPods
	a.mu.Unlock()
	s.Assess()
}

// Client sends requests to a running agent.
type Client struct{ http.Client }

// NewClient returns a client of the agent that listens on a unix socket.
func NewClient(socket string) *Client {
	return &Client{http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}}
}

// ErrNotRunning means that no agent answers on the socket.
var ErrNotRunning = errors.New("no agent is running there")

// Get reads one of the paths above into value.
func (c *Client) Get(ctx context.Context, path string, value any) error {
	response, err := c.request(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(value)
}

// request sends a GET, and returns the response if it is 200 OK.
func (c *Client) request(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return nil, ErrNotRunning
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, errors.New("only root may use the agent's socket: run this as root (sudo)")
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		var text [512]byte
		n, _ := response.Body.Read(text[:])
		if response.StatusCode == http.StatusUnprocessableEntity {
			return nil, inspect.NewRequestError(string(bytes.TrimSpace(text[:n])))
		}
		return nil, fmt.Errorf("the agent answers %s: %s", response.Status, bytes.TrimSpace(text[:n]))
	}
	return response, nil
}
