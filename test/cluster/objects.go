// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// Namespace holds the lab's pods, and the Services of tests.
const Namespace = metav1.NamespaceDefault

// Labels of Pods, for selectors of Services.
const (
	LabelPod  = "pod"  // the pod's name
	LabelNode = "node" // its node's name
)

// createObjects creates the objects of every cluster: the agent's account, a Node for each node of the lab and
// a ready Pod for each pod.
func (c *Cluster) createObjects(ctx context.Context) error {
	if err := c.createAgentAccount(ctx); err != nil {
		return err
	}
	for _, object := range node.Cluster(c.Lab) {
		if n, ok := object.(*corev1.Node); ok {
			if err := c.CreateNode(ctx, n); err != nil {
				return err
			}
		}
	}
	for _, host := range c.Lab.Pods() {
		if err := c.CreatePod(ctx, NewPod(host.Name, host)); err != nil {
			return err
		}
	}
	return nil
}

// CreateNode creates a Node with its status, in which the Ready condition is true.
func (c *Cluster) CreateNode(ctx context.Context, n *corev1.Node) error {
	status := n.Status
	created, err := c.Client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating Node %s: %w", n.Name, err)
	}
	created.Status = status
	return c.setNodeReady(ctx, created, true)
}

// SetNodeReady sets the Ready condition of a Node, as its kubelet does. The node controller taints a Node that
// is not ready; its Pods stay unchanged.
func (c *Cluster) SetNodeReady(ctx context.Context, name string, ready bool) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return c.setNodeReady(ctx, n, ready)
	})
}

func (c *Cluster) setNodeReady(ctx context.Context, n *corev1.Node, ready bool) error {
	condition := corev1.NodeCondition{
		Type:               corev1.NodeReady,
		Status:             conditionStatus(ready),
		Reason:             "Lab",
		LastHeartbeatTime:  metav1.Now(),
		LastTransitionTime: metav1.Now(),
	}
	n.Status.Conditions = []corev1.NodeCondition{condition}
	if _, err := c.Client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("status of Node %s: %w", n.Name, err)
	}
	return nil
}

func conditionStatus(ok bool) corev1.ConditionStatus {
	if ok {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// CreateService creates a Service with its status; the API server adds missing addresses.
func (c *Cluster) CreateService(ctx context.Context, s *corev1.Service) (*corev1.Service, error) {
	created, err := c.Client.CoreV1().Services(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return created, nil
	}
	return c.SetIngress(ctx, created, s.Status.LoadBalancer.Ingress...)
}

// SetIngress does what a cloud's load balancer does: it writes the external addresses of a Service.
func (c *Cluster) SetIngress(ctx context.Context, s *corev1.Service, ingress ...corev1.LoadBalancerIngress) (*corev1.Service, error) {
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = ingress
	updated, err := c.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("status of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return updated, nil
}

// NewService is the dual-stack Service of package node: TCP port 80 and the ClusterIPs of number n, which are
// 10.96.0.n and fd00:96::n; 1 and 254 are used. It selects the pods that have all of these labels; with none it
// has no selector, and the test writes its EndpointSlices.
func NewService(name string, n uint8, selector map[string]string) *corev1.Service {
	s := node.Service(name, n)
	policy := corev1.IPFamilyPolicyRequireDualStack
	s.Spec.IPFamilyPolicy = &policy
	s.Spec.Selector = selector
	return s
}

// hostAddresses are a host's addresses, as in a Pod's status.
func hostAddresses(h *lab.Host) []string { return []string{h.Addr4.String(), h.Addr6.String()} }
