// The Go module k8s.io/client-go: server-side apply, informers, the dynamic client, exec, leader election.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/remotecommand"
)

const limit = 2 * time.Minute

var namespace = os.Getenv("KNARR_NAMESPACE")

type trial struct {
	config *rest.Config
	client kubernetes.Interface
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	check(err)
	binary := rest.CopyConfig(config)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	t := trial{config: config, client: kubernetes.NewForConfigOrDie(binary)}
	ctx, cancel := context.WithTimeout(context.Background(), 5*limit)
	defer cancel()
	for _, step := range []struct {
		name string
		run  func(context.Context)
	}{
		{"discovery", t.discovery},
		{"server-side apply", t.apply},
		{"informers", t.informers},
		{"dynamic client", t.dynamic},
		{"exec by WebSocket and SPDY", t.exec},
		{"leader election", t.leaderElection},
	} {
		fmt.Println("try: " + step.name)
		step.run(ctx)
	}
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, values ...any) {
	fmt.Printf(format+"\n", values...)
	os.Exit(1)
}

func eventually(ctx context.Context, what string, ask func(context.Context) (bool, error)) {
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, ask); err != nil {
		fail("%s: %v", what, err)
	}
}

func (t trial) discovery(context.Context) {
	_, lists, err := t.client.Discovery().ServerGroupsAndResources()
	check(err)
	if len(lists) < 15 {
		fail("only %d groups in discovery", len(lists))
	}
}

func (t trial) apply(ctx context.Context) {
	maps := t.client.CoreV1().ConfigMaps(namespace)
	wanted := applycorev1.ConfigMap("applied", namespace).WithData(map[string]string{"x": "1", "y": "1"})
	_, err := maps.Apply(ctx, wanted, metav1.ApplyOptions{FieldManager: "one"})
	check(err)
	other := applycorev1.ConfigMap("applied", namespace).WithData(map[string]string{"x": "2"})
	if _, err = maps.Apply(ctx, other, metav1.ApplyOptions{FieldManager: "two"}); !apierrors.IsConflict(err) {
		fail("another manager's field was applied: %v", err)
	}
	_, err = maps.Apply(ctx, other, metav1.ApplyOptions{FieldManager: "two", Force: true})
	check(err)
	// A field that a manager no longer applies is removed, unless another manager owns it.
	mine := applycorev1.ConfigMap("applied", namespace)
	found, err := maps.Apply(ctx, mine, metav1.ApplyOptions{FieldManager: "one"})
	check(err)
	if len(found.Data) != 1 || found.Data["x"] != "2" {
		fail("data after all managers applied: %v", found.Data)
	}
	kept, err := applycorev1.ExtractConfigMap(found, "two")
	check(err)
	if kept.Data["x"] != "2" {
		fail("the fields of one manager: %v", kept.Data)
	}
}

func (t trial) informers(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	factory := informers.NewSharedInformerFactoryWithOptions(t.client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps()
	var mutex sync.Mutex
	var seen []string
	note := func(verb string, object any) {
		if late, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = late.Obj
		}
		if configMap := object.(*corev1.ConfigMap); configMap.Name == "watched" {
			mutex.Lock()
			defer mutex.Unlock()
			seen = append(seen, verb)
		}
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { note("add", object) },
		UpdateFunc: func(_, object any) { note("update", object) },
		DeleteFunc: func(object any) { note("delete", object) },
	})
	check(err)
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			fail("the informer of %v is not synced", kind)
		}
	}
	maps := t.client.CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}}, metav1.CreateOptions{})
	check(err)
	stale := made.DeepCopy()
	made.Data = map[string]string{"x": "1"}
	_, err = maps.Update(ctx, made, metav1.UpdateOptions{})
	check(err)
	if _, err = maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		fail("an update of an old version: %v", err)
	}
	eventually(ctx, "the lister sees the update", func(context.Context) (bool, error) {
		held, err := informer.Lister().ConfigMaps(namespace).Get("watched")
		return err == nil && held.Data["x"] == "1", nil
	})
	check(maps.Delete(ctx, "watched", metav1.DeleteOptions{}))
	eventually(ctx, "three events", func(context.Context) (bool, error) {
		mutex.Lock()
		defer mutex.Unlock()
		return fmt.Sprint(seen) == "[add update delete]", nil
	})
}

func (t trial) dynamic(ctx context.Context) {
	client := dynamic.NewForConfigOrDie(t.config)
	definitions := client.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	number := map[string]any{"type": "integer", "minimum": int64(1)}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "oars.go.example.com"},
		"spec": map[string]any{
			"group": "go.example.com",
			"scope": "Namespaced",
			"names": map[string]any{"kind": "Oar", "singular": "oar", "plural": "oars"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{"spec": map[string]any{
						"type": "object", "properties": map[string]any{"length": number},
					}},
				}},
			}},
		},
	}}
	_, err := definitions.Create(ctx, definition, metav1.CreateOptions{})
	check(err)
	oars := client.Resource(schema.GroupVersionResource{Group: "go.example.com", Version: "v1", Resource: "oars"}).Namespace(namespace)
	oar := func(length int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "go.example.com/v1", "kind": "Oar",
			"metadata": map[string]any{"name": "long"},
			"spec":     map[string]any{"length": length},
		}}
	}
	eventually(ctx, "the resource is served", func(ctx context.Context) (bool, error) {
		_, err := oars.Create(ctx, oar(4), metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if _, err = oars.Apply(ctx, "short", oar(0), metav1.ApplyOptions{FieldManager: "one"}); err == nil {
		fail("a name that differs from the object's was applied")
	}
	bad := oar(0)
	bad.SetName("bad")
	if _, err = oars.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		fail("an object that its schema forbids: %v", err)
	}
	patch := []byte(`{"spec": {"length": 5}}`)
	patched, err := oars.Patch(ctx, "long", types.MergePatchType, patch, metav1.PatchOptions{})
	check(err)
	if length, _, _ := unstructured.NestedInt64(patched.Object, "spec", "length"); length != 5 {
		fail("patched: %v", patched.Object)
	}
	list, err := oars.List(ctx, metav1.ListOptions{})
	check(err)
	watch, err := oars.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	check(err)
	defer watch.Stop()
	check(oars.Delete(ctx, "long", metav1.DeleteOptions{}))
	if event, open := <-watch.ResultChan(); !open || event.Type != "DELETED" {
		fail("instead of the deletion: %v", event)
	}
}

func (t trial) exec(ctx context.Context) {
	pods := t.client.CoreV1().Pods(namespace)
	grace := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "box"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: "busybox", ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sleep", "1000"},
			}},
		},
	}
	_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	check(err)
	eventually(ctx, "a running pod", func(ctx context.Context) (bool, error) {
		found, err := pods.Get(ctx, "box", metav1.GetOptions{})
		return err == nil && found.Status.Phase == corev1.PodRunning, err
	})
	request := t.client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name("box").SubResource("exec")
	request.VersionedParams(&corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true}, scheme.ParameterCodec)
	socket, err := remotecommand.NewWebSocketExecutor(t.config, "GET", request.URL().String())
	check(err)
	spdy, err := remotecommand.NewSPDYExecutor(t.config, "POST", request.URL())
	check(err)
	// More than all buffers of the connection hold.
	long := bytes.Repeat([]byte("all the way there and back\n"), 100_000)
	for name, executor := range map[string]remotecommand.Executor{"WebSocket": socket, "SPDY": spdy} {
		var back bytes.Buffer
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: bytes.NewReader(long), Stdout: &back})
		if err != nil || !bytes.Equal(back.Bytes(), long) {
			fail("%s: %d of %d bytes came back: %v", name, back.Len(), len(long), err)
		}
	}
}

func (t trial) leaderElection(ctx context.Context) {
	leads := make(chan string, 2)
	stood := map[string]context.CancelFunc{}
	var done sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		mine, resign := context.WithCancel(ctx)
		stood[name] = resign
		done.Go(func() {
			leaderelection.RunOrDie(mine, leaderelection.LeaderElectionConfig{
				Lock: &resourcelock.LeaseLock{
					LeaseMeta:  metav1.ObjectMeta{Name: "helm", Namespace: namespace},
					Client:     t.client.CoordinationV1(),
					LockConfig: resourcelock.ResourceLockConfig{Identity: name},
				},
				ReleaseOnCancel: true,
				LeaseDuration:   15 * time.Second,
				RenewDeadline:   10 * time.Second,
				RetryPeriod:     time.Second,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { leads <- name },
					OnStoppedLeading: func() {},
				},
			})
		})
	}
	first := <-leads
	stood[first]()
	select {
	case second := <-leads:
		if second == first {
			fail("%s leads again after it resigned", first)
		}
		stood[second]()
	case <-time.After(limit):
		fail("nobody leads after the first one resigned")
	}
	done.Wait()
	lease, err := t.client.CoordinationV1().Leases(namespace).Get(ctx, "helm", metav1.GetOptions{})
	check(err)
	transitions, holder := lease.Spec.LeaseTransitions, lease.Spec.HolderIdentity
	if transitions == nil || *transitions != 1 || holder != nil && *holder != "" {
		fail("the lease at the end: %v", lease.Spec)
	}
}
