// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"path"
	"strings"
	"time"
)

// Media types of the OCI image specification 1.1.
const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type imageConfig struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		User       string
		Env        []string
		Entrypoint []string
		WorkingDir string
		Labels     map[string]string
		StopSignal string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// labels are the standard annotations of the image specification.
func (b *build) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":       "beeline",
		prefix + "description": "Kubernetes Services in eBPF, in place of kube-proxy",
		prefix + "version":     b.Version,
		prefix + "created":     b.Created.Format(time.RFC3339),
		prefix + "licenses":    "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
	}
}

func (b *build) config(diffID string) imageConfig {
	c := imageConfig{platform: platform{b.Arch, "linux"}, Created: b.Created}
	c.Config.User = "0:0"
	c.Config.Env = []string{"PATH=/" + strings.TrimSuffix(binFolder, "/")}
	c.Config.Entrypoint = []string{"/" + programPath}
	c.Config.WorkingDir = "/"
	c.Config.Labels = b.labels()
	c.Config.StopSignal = "SIGTERM"
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{diffID}
	c.History = []history{{b.Created, "beeline deploy/image"}}
	return c
}

// archive writes the layout with its blobs, and the same image as a docker archive.
func (b *build) archive(w io.Writer, layer []byte, diffID string) (digest string, err error) {
	a := archive{t: tar.NewWriter(w), created: b.Created}
	layerAt := a.blob(typeLayer, layer)
	configAt := a.blob(typeConfig, a.encode(b.config(diffID)))
	image := a.blob(typeManifest, a.encode(manifest{2, typeManifest, configAt, []descriptor{layerAt}, b.labels()}))
	image.Platform = &platform{b.Arch, "linux"}
	_, tag, _ := strings.Cut(path.Base(b.Reference), ":")
	image.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": b.Reference}
	a.file("index.json", a.encode(index{2, typeIndex, []descriptor{image}}))
	a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	a.file("manifest.json", a.encode([]map[string]any{{
		"Config": blobPath(configAt.Digest), "RepoTags": []string{b.Reference}, "Layers": []string{blobPath(layerAt.Digest)},
	}}))
	return image.Digest, errors.Join(a.err, a.t.Close())
}

// archive writes the files of an image, and keeps the first error.
type archive struct {
	t       *tar.Writer
	created time.Time
	err     error
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func (a *archive) blob(kind string, text []byte) descriptor {
	d := descriptor{MediaType: kind, Digest: digestOf(text), Size: len(text)}
	a.file(blobPath(d.Digest), text)
	return d
}

func (a *archive) encode(value any) []byte {
	text, err := json.Marshal(value)
	a.err = errors.Join(a.err, err)
	return text
}

func (a *archive) file(name string, text []byte) {
	if a.err != nil {
		return
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: a.created, Format: tar.FormatPAX}
	if a.err = a.t.WriteHeader(h); a.err == nil {
		_, a.err = a.t.Write(text)
	}
}
