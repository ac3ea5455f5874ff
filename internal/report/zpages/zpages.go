// SPDX-License-Identifier: Apache-2.0

// Package zpages serves /statusz and /flagz as the components of Kubernetes 1.36 do (KEP-4827, KEP-4828): as text for
// people, or as an object of group config.k8s.io where the Accept header asks for one.
package zpages

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// group is the API group of the objects. v1alpha1 is deprecated, and has the same fields.
const group = "config.k8s.io"

var versions = []string{"v1beta1", "v1alpha1"}

// typeMeta begins each object.
type typeMeta struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   map[string]string `json:"metadata"`
}

func newTypeMeta(kind, component, version string) typeMeta {
	return typeMeta{Kind: kind, APIVersion: group + "/" + version, Metadata: map[string]string{"name": component}}
}

// page is one of the endpoints.
type page struct {
	kind, component string
	text            func() string
	object          func(typeMeta) any
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	format, version := p.negotiate(r.Header.Get("Accept"))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if version == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(p.kind)))
	}
	object := func() any { return p.object(newTypeMeta(p.kind, p.component, version)) }
	var body []byte
	var err error
	switch format {
	case "text/plain":
		format += "; charset=utf-8"
		body = []byte(p.header() + p.text())
	case "application/json":
		body, err = json.Marshal(object())
	case "application/yaml":
		body, err = yaml.Marshal(object())
	default:
		http.Error(w, fmt.Sprintf("only text/plain is served, and application/json and application/yaml with the parameters g=%s, v=%s and as=%s",
			group, versions[0], p.kind), http.StatusNotAcceptable)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", format)
	w.Write(body) // an error means that the client has disconnected
}

// header begins the text, and separator is one of several, so that no program parses the text. As in Kubernetes.
func (p *page) header() string {
	return fmt.Sprintf("\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n",
		p.component, strings.ToLower(p.kind))
}

func separator() string {
	all := []string{":", ": ", "=", " "}
	return all[rand.N(len(all))]
}

// negotiate returns the media type of the answer, and the version of an object; empty if nothing fits.
func (p *page) negotiate(accept string) (format, version string) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", ""
	}
	for _, clause := range clauses(accept) {
		switch clause.mediaType {
		case "text/plain", "text/*", "*/*":
			return "text/plain", ""
		case "application/json", "application/yaml":
			of := clause.parameters
			if of["g"] == group && of["as"] == p.kind && slices.Contains(versions, of["v"]) {
				return clause.mediaType, of["v"]
			}
		}
	}
	return "", ""
}

// clause is a part of an Accept header (RFC 9110 section 12.5.1).
type clause struct {
	mediaType  string
	parameters map[string]string
	quality    float64
}

// clauses returns those of a header, the preferred ones first. It skips invalid ones.
func clauses(accept string) (all []clause) {
	for text := range strings.SplitSeq(accept, ",") {
		mediaType, parameters, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		c := clause{mediaType, parameters, 1}
		if q, err := strconv.ParseFloat(parameters["q"], 64); err == nil {
			c.quality = q
		}
		if c.quality > 0 {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b clause) int { return cmp.Compare(b.quality, a.quality) })
	return all
}
