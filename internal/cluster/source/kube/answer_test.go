// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
)

// answer is the response to one request.
type answer struct {
	*apiServer
	w       http.ResponseWriter
	r       *http.Request
	kind    *kind
	options metav1.ListOptions
	labels  labels.Selector
	fields  fields.Selector
	media   runtime.SerializerInfo
	encoder runtime.Encoder
}

var codecs = serializer.NewCodecFactory(scheme)

// choose selects the format that the client prefers.
func (a *answer) choose() {
	want := runtime.ContentTypeJSON
	if strings.HasPrefix(a.r.Header.Get("Accept"), runtime.ContentTypeProtobuf) && !a.jsonOnly {
		want = runtime.ContentTypeProtobuf
	}
	a.media, _ = runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), want)
	a.encoder = codecs.EncoderForVersion(a.media.Serializer, a.kind.resource.GroupVersion())
}

func (a *answer) status(err *apierrors.StatusError) {
	a.w.Header().Set("Content-Type", a.media.MediaType)
	a.w.WriteHeader(int(err.Status().Code))
	a.w.Write(a.encode(new(err.Status())))
}

func (a *answer) encode(o runtime.Object) []byte {
	var b bytes.Buffer
	encoder := a.encoder
	if _, ok := o.(*metav1.Status); ok {
		encoder = codecs.EncoderForVersion(a.media.Serializer, schema.GroupVersion{Version: "v1"})
	}
	if err := encoder.Encode(o.DeepCopyObject(), &b); err != nil {
		a.t.Errorf("encode a %T: %v", o, err)
	}
	return b.Bytes()
}

func (a *answer) selects(o runtime.Object) bool {
	if o == nil {
		return false
	}
	m, _ := meta.Accessor(o)
	values := fields.Set{"metadata.name": m.GetName()}
	switch o := o.(type) {
	case *corev1.Service:
		values["spec.clusterIP"] = o.Spec.ClusterIP
	case *corev1.Pod:
		values["spec.nodeName"] = o.Spec.NodeName
	}
	return a.labels.Matches(labels.Set(m.GetLabels())) && a.fields.Matches(values)
}

// snapshot returns all selected objects and the resource version.
func (a *answer) snapshot() (all []runtime.Object, version int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	objects := a.objects[a.kind.resource.Resource]
	for _, k := range slices.Sorted(maps.Keys(objects)) {
		if a.selects(objects[k]) {
			all = append(all, objects[k])
		}
	}
	return all, a.version
}

func (a *answer) list() {
	all, version := a.snapshot()
	list, err := scheme.New(a.kind.resource.GroupVersion().WithKind(string(a.kind.name) + "List"))
	if err != nil {
		a.t.Error(err)
	}
	m, _ := meta.ListAccessor(list)
	m.SetResourceVersion(strconv.Itoa(version))
	from, _ := strconv.Atoi(a.options.Continue)
	all = all[min(from, len(all)):]
	if limit := int(a.options.Limit); a.pages && limit > 0 && limit < len(all) {
		all = all[:limit]
		m.SetContinue(strconv.Itoa(from + limit))
	}
	if err := meta.SetList(list, all); err != nil {
		a.t.Error(err)
	}
	a.w.Header().Set("Content-Type", a.media.MediaType)
	a.w.Write(a.encode(list))
}

func (a *answer) watch() {
	initial := a.options.SendInitialEvents != nil
	if initial && a.noWatchList {
		a.status(apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil))
		return
	}
	a.w.Header().Set("Content-Type", a.media.MediaType+";stream=watch")
	a.w.WriteHeader(http.StatusOK)
	a.flush()
	from, _ := strconv.Atoi(a.options.ResourceVersion)
	if initial {
		var all []runtime.Object
		all, from = a.snapshot()
		for _, o := range all {
			a.send(watch.Added, o)
		}
		a.bookmark(from, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	a.flush()
	for {
		events, version, changed, gone := a.since(from)
		if gone {
			a.send(watch.Error, new(apierrors.NewResourceExpired("too old resource version").Status()))
			return
		}
		for _, ev := range events {
			a.send(ev.Type, ev.Object)
		}
		from = version
		a.flush()
		select {
		case <-a.r.Context().Done():
			return
		case <-changed:
		}
	}
}

// since returns the changes after a resource version.
func (a *answer) since(from int) (events []watch.Event, version int, changed <-chan struct{}, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if from < a.forgotten {
		return nil, 0, nil, true
	}
	for _, c := range a.history {
		if c.version <= from || c.resource != a.kind.resource.Resource {
			continue
		}
		was, is := a.selects(c.old), a.selects(c.now)
		switch {
		case was && is:
			events = append(events, watch.Event{Type: watch.Modified, Object: c.now})
		case is:
			events = append(events, watch.Event{Type: watch.Added, Object: c.now})
		case was:
			last := c.old.DeepCopyObject()
			m, _ := meta.Accessor(last)
			m.SetResourceVersion(strconv.Itoa(c.version))
			events = append(events, watch.Event{Type: watch.Deleted, Object: last})
		}
	}
	return events, a.version, a.changed, false
}

func (a *answer) bookmark(version int, annotations map[string]string) {
	o, err := scheme.New(a.kind.resource.GroupVersion().WithKind(string(a.kind.name)))
	if err != nil {
		a.t.Error(err)
	}
	m, _ := meta.Accessor(o)
	m.SetResourceVersion(strconv.Itoa(version))
	m.SetAnnotations(annotations)
	a.send(watch.Bookmark, o)
}

func (a *answer) send(what watch.EventType, o runtime.Object) {
	event := &metav1.WatchEvent{Type: string(what), Object: runtime.RawExtension{Raw: a.encode(o)}}
	var b bytes.Buffer
	stream := codecs.EncoderForVersion(a.media.StreamSerializer.Serializer, a.kind.resource.GroupVersion())
	if err := stream.Encode(event, &b); err != nil {
		a.t.Errorf("encode an event: %v", err)
	}
	_, _ = a.media.StreamSerializer.NewFrameWriter(a.w).Write(b.Bytes()) // the client may have disconnected
}

func (a *answer) flush() { a.w.(http.Flusher).Flush() }

// forbidden is the response to a client without permissions.
func forbidden(resource string) *apierrors.StatusError {
	return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
}

// refuse responds with a status.
func refuse(err *apierrors.StatusError) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(err.Status().Code))
		var b bytes.Buffer
		info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
		_ = codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"}).Encode(new(err.Status()), &b)
		_, _ = io.Copy(w, &b)
	}
}
