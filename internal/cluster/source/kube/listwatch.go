// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// item replaces an API object in a reflector. It holds the fields that the rules and the reflector use.
type item struct {
	// ObjectMeta has name, namespace, resource version and, in a bookmark, annotations.
	metav1.ObjectMeta
	object service.Object // nil: the object is ignored
	err    error          // invalid fields of the object
}

func (i *item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

func (i *item) DeepCopyObject() runtime.Object {
	c := *i
	return &c
}

func (k *kind) ref(m *metav1.ObjectMeta) service.Ref {
	return service.Ref{Kind: k.name, Namespace: m.Namespace, Name: m.Name}
}

// trim returns the item of a received object.
func (k *kind) trim(o runtime.Object, full bool) (*item, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	i := &item{ObjectMeta: metav1.ObjectMeta{Namespace: m.GetNamespace(), Name: m.GetName(), ResourceVersion: m.GetResourceVersion()}}
	if !full {
		i.Annotations = m.GetAnnotations()
		return i, nil
	}
	i.object, i.err = k.convert(o)
	if i.object == nil && i.err != nil {
		return nil, i.err
	}
	return i, nil
}

// selected adds the kind's selectors to the options of a request.
func (f *follower) selected(o metav1.ListOptions) *metav1.ListOptions {
	o.LabelSelector = f.kind.labels
	if !f.noFields.Load() {
		o.FieldSelector = f.kind.fields
	}
	return &o
}

// unknownField reports whether a request failed because an older server does not support the field selector.
// Later requests then omit it.
func (f *follower) unknownField(err error) bool {
	return errors.IsBadRequest(err) && f.kind.fields != "" && !f.kind.fieldsMatter && f.noFields.CompareAndSwap(false, true)
}

// List implements the reflector's ListerWatcher: it returns one page of items.
func (f *follower) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := f.list(ctx, o)
	if f.unknownField(err) {
		return f.list(ctx, o)
	}
	return list, err
}

func (f *follower) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timing.answer)
	defer cancel()
	in, err := scheme.New(f.kind.resource.GroupVersion().WithKind(string(f.kind.name) + "List"))
	if err != nil {
		return nil, err
	}
	err = f.client.Get().Resource(f.kind.resource.Resource).VersionedParams(f.selected(o), parameterCodec).Do(ctx).Into(in)
	if err != nil {
		return nil, err
	}
	page, err := meta.ListAccessor(in)
	if err != nil {
		return nil, err
	}
	out := &internalversion.List{ListMeta: metav1.ListMeta{
		ResourceVersion: page.GetResourceVersion(), Continue: page.GetContinue(), RemainingItemCount: page.GetRemainingItemCount(),
	}}
	err = meta.EachListItem(in, func(o runtime.Object) error {
		i, err := f.kind.trim(o, true)
		if err == nil {
			out.Items = append(out.Items, i)
		}
		return err
	})
	return out, err
}

// Watch implements the reflector's ListerWatcher: it returns items as they arrive.
func (f *follower) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := f.watch(ctx, o)
	if f.unknownField(err) {
		return f.watch(ctx, o)
	}
	return w, err
}

func (f *follower) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(f.timing.answer, func() {
		f.link.failed(f.link.begin(), fmt.Sprintf("no answer to a watch within %v", f.timing.answer))
		cancel()
	})
	in, err := f.client.Get().Resource(f.kind.resource.Resource).VersionedParams(f.selected(o), parameterCodec).Watch(ctx)
	late.Stop()
	if err != nil {
		cancel()
		return nil, err
	}
	t := &trimmed{in: in, out: make(chan watch.Event), ctx: ctx, cancel: cancel}
	go t.run(f)
	return t, nil
}

// trimmed is a watch whose objects are items.
type trimmed struct {
	in     watch.Interface
	out    chan watch.Event
	ctx    context.Context
	cancel context.CancelFunc
}

func (t *trimmed) ResultChan() <-chan watch.Event { return t.out }

func (t *trimmed) Stop() { t.cancel() }

func (t *trimmed) run(f *follower) {
	defer close(t.out)
	defer t.in.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case ev, ok := <-t.in.ResultChan():
			if !ok {
				return
			}
			select {
			case <-t.ctx.Done():
				return
			case t.out <- f.arrived(ev):
			}
		}
	}
}

// arrived converts one event. An invalid event ends the watch, and the reflector lists again.
func (f *follower) arrived(ev watch.Event) watch.Event {
	if ev.Type == watch.Error {
		f.broken(errors.FromObject(ev.Object))
		return ev
	}
	i, err := f.kind.trim(ev.Object, ev.Type == watch.Added || ev.Type == watch.Modified)
	if err != nil {
		f.broken(err)
		status := errors.NewGenericServerResponse(http.StatusInternalServerError, "watch", f.kind.resource.GroupResource(), "", err.Error(), 0, true).Status()
		return watch.Event{Type: watch.Error, Object: &status}
	}
	f.state.seen(f.kind)
	return watch.Event{Type: ev.Type, Object: i}
}

// broken records why a watch ended, unless the reason is normal: the server expired an old version, sheds load
// or restarts.
func (f *follower) broken(err error) {
	if errors.IsResourceExpired(err) || errors.IsGone(err) || errors.IsTooManyRequests(err) ||
		errors.IsTimeout(err) || errors.IsServerTimeout(err) || errors.IsServiceUnavailable(err) {
		return
	}
	f.state.broke(f.kind, source.Problem{Object: string(f.kind.name), Warning: true,
		Reason: fmt.Sprintf("the watch failed, and the objects are listed again: %v", err)})
}

// store receives a reflector's items.
type store struct {
	kind  *kind
	state *state
}

var _ cache.ReflectorStore = (*store)(nil)

func (s *store) Add(o any) error    { return s.Update(o) }
func (s *store) Delete(o any) error { return s.Update(o) } // a deletion has no object
func (s *store) Resync() error      { return nil }

func (s *store) Update(o any) error {
	s.state.changed(s.kind, o.(*item))
	return nil
}

func (s *store) Replace(all []any, _ string) error {
	items := make([]*item, len(all))
	for n, o := range all {
		items[n] = o.(*item)
	}
	s.state.listed(s.kind, items)
	return nil
}
