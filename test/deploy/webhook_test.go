// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// injector has the API server ask a webhook about new pods of a namespace, which answers with a JSON patch, as the
// injectors of service meshes do.
func (s *server) injector(t *testing.T, namespace string, patch []byte) {
	t.Helper()
	listener, err := s.Lab.Host("fabric").Listen("tcp", "127.0.0.1:0")
	must(t, err)
	webhook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct {
				UID string `json:"uid"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
			"response": map[string]any{"uid": review.Request.UID, "allowed": true, "patchType": "JSONPatch", "patch": patch},
		})
	}))
	webhook.Listener.Close()
	webhook.Listener = listener
	webhook.StartTLS()
	t.Cleanup(webhook.Close)

	o := newObject("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "injector")
	o.SetNamespace("")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	o.Object["webhooks"] = []any{map[string]any{
		"name": "injector.beeline.test", "admissionReviewVersions": []any{"v1"}, "sideEffects": "None",
		"clientConfig":      map[string]any{"url": webhook.URL, "caBundle": base64.StdEncoding.EncodeToString(authority)},
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": namespace}},
		"rules": []any{map[string]any{
			"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"}, "resources": []any{"pods"},
		}},
	}}
	_, err = s.apply(t.Context(), o, false)
	must(t, err)
	t.Cleanup(func() { must(t, s.resource(o).Delete(context.Background(), o.GetName(), metav1.DeleteOptions{})) })
}
