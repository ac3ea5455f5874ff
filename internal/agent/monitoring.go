// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/pprof"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/report/zpages"
)

// ProxyMode is the answer to /proxyMode. None of kube-proxy's modes would be true: a program that asks looks for
// the rules of that mode.
const ProxyMode = "beeline"

// emulates is the version of kube-proxy whose rules Beeline follows (package service).
const emulates = "1.36"

// metricsHandler serves what monitoring reads, at the paths of kube-proxy 1.36.
func (a *Agent) metricsHandler() http.Handler {
	pages := map[string]http.Handler{
		"/metrics":   a.metrics.Handler(),
		"/proxyMode": plainText(ProxyMode),
		"/healthz":   plainText("ok"), // kube-proxy's has no checks there either
		"/flagz":     zpages.Flagz("beeline", a.config.flagValues()),
		"/configz":   http.HandlerFunc(a.configz),
	}
	if a.config.Profiling {
		pages["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
		pages["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
		pages["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
		pages["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
		pages["/debug/flags/v"] = http.HandlerFunc(a.setVerbosity)
	}
	pages["/statusz"] = zpages.Statusz(zpages.Status{
		Component: "beeline", Started: a.started, Version: a.version, Emulates: emulates, Paths: slices.Collect(maps.Keys(pages)),
	})
	mux := http.NewServeMux()
	for path, page := range pages {
		mux.Handle(path, page)
	}
	return mux
}

func plainText(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		io.WriteString(w, text)
	})
}

// configz answers with the settings in effect, under the names of the configuration file.
func (a *Agent) configz(w http.ResponseWriter, _ *http.Request) {
	settings := a.config.Effective()
	settings["cgroup-root"] = a.datapath.CgroupPath()
	body, err := json.Marshal(map[string]any{"beeline": settings})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Write(body) // an error means that the client has disconnected
}

// debugVerbosity is the verbosity of klog from which on Kubernetes logs details for debugging.
const debugVerbosity = 4

// setVerbosity answers PUT /debug/flags/v as kube-proxy does: the body is a verbosity of klog.
func (a *Agent) setVerbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "unsupported http method", http.StatusNotAcceptable)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 64))
	verbosity, wrong := strconv.ParseInt(string(body), 10, 32)
	if err := errors.Join(err, wrong); err != nil {
		http.Error(w, fmt.Sprintf("%v: send a number: %d or more for debug, less for info", err, debugVerbosity), http.StatusBadRequest)
		return
	}
	level := slog.LevelInfo
	if verbosity >= debugVerbosity {
		level = slog.LevelDebug
	}
	a.config.Logged.Set(level)
	a.log.Info("the log level was set by /debug/flags/v", "level", level)
	plainText(fmt.Sprintf("successfully set klog.logging.verbosity to %d", verbosity)).ServeHTTP(w, r)
}

// visitSettings calls f with each flag that is also a setting of the configuration file.
func (c *Config) visitSettings(f func(*pflag.Flag)) {
	if c.flags == nil {
		return
	}
	c.flags.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && flag.Name != "config" && flag.Name != "help" {
			f(flag)
		}
	})
}

// flagValues returns the flags as they were given, by the command line or the configuration file.
func (c *Config) flagValues() map[string]string {
	values := map[string]string{}
	c.visitSettings(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// Effective returns the settings in effect: those that were not given have the value that the agent chose. The
// result can be used as a configuration file.
func (c *Config) Effective() map[string]any {
	settings := map[string]any{}
	c.visitSettings(func(f *pflag.Flag) { settings[f.Name] = settingValue(f.Value) })
	settings["service-share"], settings["namespace-share"] = c.Shares.Service, c.Shares.Namespace
	c.Components.Effective(settings)
	return settings
}

// settingValue returns a value as JSON has it: lists, numbers, booleans, and text for all else.
func settingValue(value pflag.Value) any {
	if list, ok := value.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...)
	}
	text := value.String()
	switch value.Type() {
	case "bool", "int", "uint16", "uint32":
		return json.RawMessage(text)
	}
	return text
}
