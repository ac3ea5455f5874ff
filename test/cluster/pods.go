// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"beeline.io/beeline/test/lab"
)

// NewPod is a ready Pod in a host of the lab: one of its pods, or a node for the host network. Its status is as
// the kubelet would write it.
func NewPod(name string, host *lab.Host) *corev1.Pod {
	machine := host.Node
	if machine == nil {
		machine = host
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: name,
			Labels: map[string]string{LabelPod: host.Name, LabelNode: machine.Name},
		},
		Spec: corev1.PodSpec{
			NodeName:    machine.Name,
			HostNetwork: machine == host,
			Containers:  []corev1.Container{{Name: "server", Image: "lab.invalid/server"}},
		},
	}
	setRunning(&pod.Status, host, machine)
	return pod
}

func setRunning(status *corev1.PodStatus, host, machine *lab.Host) {
	now := metav1.Now()
	status.Phase, status.StartTime = corev1.PodRunning, &now
	for _, ip := range hostAddresses(host) {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	for _, ip := range hostAddresses(machine) {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: ip})
	}
	status.PodIP, status.HostIP = status.PodIPs[0].IP, status.HostIPs[0].IP
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
}

// CreatePod creates a Pod with its status.
func (c *Cluster) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	created, err := c.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	created.Status = pod.Status
	if _, err := c.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("status of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// SetPodReady sets a Pod's Ready condition, as the kubelet does after a
// readiness probe.
func (c *Cluster) SetPodReady(ctx context.Context, name string, ready bool) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pod, err := c.Client.CoreV1().Pods(Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range pod.Status.Conditions {
			condition := &pod.Status.Conditions[i]
			if condition.Type == corev1.PodReady || condition.Type == corev1.ContainersReady {
				condition.Status, condition.LastTransitionTime = conditionStatus(ready), metav1.Now()
			}
		}
		_, err = c.Client.CoreV1().Pods(Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("readiness of Pod %s/%s: %w", Namespace, name, err)
	}
	return nil
}

// TerminatePod deletes a Pod as users do. Since no kubelet confirms its end, it stays, terminating, until
// RemovePod.
func (c *Cluster) TerminatePod(ctx context.Context, name string) error {
	return c.deletePod(ctx, name, 3600)
}

// RemovePod removes a Pod at once, as the kubelet does when its processes have ended.
func (c *Cluster) RemovePod(ctx context.Context, name string) error {
	return c.deletePod(ctx, name, 0)
}

func (c *Cluster) deletePod(ctx context.Context, name string, seconds int64) error {
	if err := c.Client.CoreV1().Pods(Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &seconds}); err != nil {
		return fmt.Errorf("deleting Pod %s/%s: %w", Namespace, name, err)
	}
	return nil
}
