// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// InCluster reports whether the process runs in a pod with the API server's address in its environment.
func InCluster() bool {
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
}

// restConfig returns the client configuration for the server. Its errors name what to change.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the in-cluster configuration of the API server is incomplete: %w; "+
				"give the pod a service account with a token, or give a file with --kubeconfig", err)
		}
		return config, nil
	}
	content, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		// An error from opening the file contains its name; errors in its content may not.
		if pathError := new(os.PathError); errors.As(err, &pathError) {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		return nil, fmt.Errorf("--kubeconfig %s: not a kubeconfig: %w", kubeconfig, err)
	}
	if err := clientcmd.ResolveLocalPaths(content); err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	context := content.Contexts[content.CurrentContext]
	switch {
	case content.CurrentContext == "":
		return nil, fmt.Errorf("--kubeconfig %s: no current-context; choose one with \"kubectl config use-context\"", kubeconfig)
	case context == nil:
		return nil, fmt.Errorf("--kubeconfig %s: the current-context %q does not exist in the file", kubeconfig, content.CurrentContext)
	case content.Clusters[context.Cluster] == nil || content.Clusters[context.Cluster].Server == "":
		return nil, fmt.Errorf("--kubeconfig %s: the cluster %q of context %q has no server", kubeconfig, context.Cluster, content.CurrentContext)
	case context.AuthInfo != "" && content.AuthInfos[context.AuthInfo] == nil:
		return nil, fmt.Errorf("--kubeconfig %s: the user %q of context %q does not exist in the file", kubeconfig, context.AuthInfo, content.CurrentContext)
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*content, content.CurrentContext, nil, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// scheme contains only the kinds that are read, because every kind costs memory.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s
}

var parameterCodec = runtime.NewParameterCodec(scheme)

// clientConfig returns a copy with what all clients share.
func clientConfig(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.WarningHandler = rest.NoWarnings{}
	return config
}

// jsonClient returns a client of any API group, which reads and writes JSON.
func jsonClient(config *rest.Config) (rest.Interface, error) {
	config = clientConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.UnversionedRESTClientFor(config)
}

// clients returns one client per API group of the kinds. They share their connections.
func clients(config *rest.Config, kinds []kind) (map[schema.GroupVersion]rest.Interface, error) {
	config = clientConfig(config)
	config.QPS, config.Burst = 20, 40 // for lists only; watches do not count
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	all := map[schema.GroupVersion]rest.Interface{}
	for _, k := range kinds {
		version := k.resource.GroupVersion()
		if all[version] != nil {
			continue
		}
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &version, "/apis"
		if version.Group == "" {
			c.APIPath = "/api"
		}
		if all[version], err = rest.RESTClientForConfigAndClient(c, transport); err != nil {
			return nil, err
		}
	}
	return all, nil
}
