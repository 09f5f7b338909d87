//go:build ignore

// Makes random clusters and pods, asks upstream's scheduler plugins about them, and writes cases with their answers,
// one JSON object a line. Run it in a module that requires k8s.io/kubernetes v1.37.0 and the staging modules:
//
//	go run facts.go 240 > facts.jsonl
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

const (
	zone = "topology.kubernetes.io/zone"
	host = "kubernetes.io/hostname"
)

var asked = []string{"NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
	"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone",
	"PodTopologySpread", "InterPodAffinity", "NodeResourcesBalancedAllocation", "ImageLocality"}

var weights = map[string]int32{"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2}

type verdict struct {
	Plugin  string   `json:"plugin"`
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
}

type fact struct {
	Namespaces  []*v1.Namespace                 `json:"namespaces"`
	Services    []*v1.Service                   `json:"services"`
	Claims      []*v1.PersistentVolumeClaim     `json:"claims"`
	Volumes     []*v1.PersistentVolume          `json:"volumes"`
	Classes     []*storagev1.StorageClass       `json:"classes"`
	CSINodes    []*storagev1.CSINode            `json:"csiNodes"`
	CSIDrivers  []*storagev1.CSIDriver          `json:"csiDrivers"`
	Capacities  []*storagev1.CSIStorageCapacity `json:"capacities"`
	Attachments []*storagev1.VolumeAttachment   `json:"attachments"`
	Nodes       []*v1.Node                      `json:"nodes"`
	Pods        []*v1.Pod                       `json:"pods"`
	Pod         *v1.Pod                         `json:"pod"`
	Rejected    []string                        `json:"rejected,omitempty"`
	Unfit       map[string]verdict              `json:"unfit"`
	Scores      map[string]map[string]int64     `json:"scores"`
	Totals      map[string]int64                `json:"totals"`
}

type maker struct{ *rand.Rand }

func (r maker) one(of ...string) string { return of[r.Intn(len(of))] }
func (r maker) in(n int) bool           { return r.Intn(n) == 0 }

func (r maker) labels() map[string]string {
	labels := map[string]string{"app": r.one("web", "db", "cache")}
	if r.in(2) {
		labels["tier"] = r.one("front", "back")
	}
	return labels
}

func (r maker) selector() *metav1.LabelSelector {
	switch r.Intn(5) {
	case 0:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier",
			Operator: metav1.LabelSelectorOperator(r.one("Exists", "DoesNotExist"))}}}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app",
			Operator: metav1.LabelSelectorOperator(r.one("In", "NotIn")), Values: []string{"web", "db"}}}}
	default:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": r.one("web", "db", "cache")}}
	}
}

func (r maker) term() v1.PodAffinityTerm {
	term := v1.PodAffinityTerm{LabelSelector: r.selector(), TopologyKey: r.one(zone, host, "rack")}
	switch r.Intn(6) {
	case 0:
		term.Namespaces = []string{"other"}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{}
	case 2:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	}
	return term
}

func (r maker) nodeTerm() v1.NodeSelectorTerm {
	requirement := v1.NodeSelectorRequirement{Key: r.one("disk", zone, "cpus", "rack")}
	requirement.Operator = v1.NodeSelectorOperator(r.one("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
	switch requirement.Operator {
	case "In", "NotIn":
		requirement.Values = []string{r.one("ssd", "z0", "z1", "8"), r.one("hdd", "z2", "16")}
	case "Gt", "Lt":
		requirement.Key, requirement.Values = "cpus", []string{r.one("8", "12")}
	}
	term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{requirement}}
	if r.in(8) {
		term.MatchFields = []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In",
			Values: []string{"n" + strconv.Itoa(r.Intn(4))}}}
	}
	return term
}

func (r maker) spread() v1.TopologySpreadConstraint {
	c := v1.TopologySpreadConstraint{MaxSkew: int32(1 + r.Intn(2)), TopologyKey: r.one(zone, zone, host, "rack"),
		WhenUnsatisfiable: v1.UnsatisfiableConstraintAction(r.one("DoNotSchedule", "ScheduleAnyway")),
		LabelSelector:     r.selector()}
	if r.in(4) && c.WhenUnsatisfiable == v1.DoNotSchedule {
		n := int32(1 + r.Intn(4))
		c.MinDomains = &n
	}
	if r.in(3) {
		p := v1.NodeInclusionPolicy(r.one("Ignore", "Honor"))
		c.NodeAffinityPolicy = &p
	}
	if r.in(3) {
		p := v1.NodeInclusionPolicy(r.one("Ignore", "Honor"))
		c.NodeTaintsPolicy = &p
	}
	if r.in(5) {
		c.MatchLabelKeys = []string{"tier"}
	}
	return c
}

func (r maker) node(n int) *v1.Node {
	name := "n" + strconv.Itoa(n)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{host: name,
		"cpus": r.one("4", "8", "16", "many")}}}
	if !r.in(7) {
		node.Labels[zone] = "z" + strconv.Itoa(r.Intn(3))
	}
	if r.in(2) {
		node.Labels["rack"] = r.one("r0", "r1")
	}
	if r.in(2) {
		node.Labels["disk"] = r.one("ssd", "hdd")
	}
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse(r.one("2", "4", "8")),
		v1.ResourceMemory:           resource.MustParse(r.one("4Gi", "8Gi", "16Gi")),
		v1.ResourceEphemeralStorage: resource.MustParse(r.one("10Gi", "100Gi")),
		v1.ResourcePods:             resource.MustParse(r.one("2", "10", "110"))}
	if r.in(3) {
		node.Status.Allocatable["example.com/gpu"] = resource.MustParse(r.one("1", "4"))
	}
	for _, image := range []string{"web:v1", "big:latest"} {
		if r.in(3) {
			node.Status.Images = append(node.Status.Images,
				v1.ContainerImage{Names: []string{image}, SizeBytes: int64(r.Intn(2000)) << 20})
		}
	}
	for _, effect := range []v1.TaintEffect{"NoSchedule", "PreferNoSchedule", "NoExecute"} {
		if r.in(8) {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: r.one("a", "b"), Value: r.one("x", "5"), Effect: effect})
		}
	}
	node.Spec.Unschedulable = r.in(12)
	return node
}

func (r maker) pod(name string, incoming bool) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.one("default", "default", "other"),
		Labels: r.labels()}}
	container := v1.Container{Name: "c", Image: r.one("web:v1", "big", "none:1")}
	if !r.in(3) {
		container.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(r.one("100m", "500m", "1500m"))}
		if r.in(2) {
			container.Resources.Requests[v1.ResourceMemory] = resource.MustParse(r.one("100Mi", "1Gi", "3Gi"))
		}
		if r.in(8) {
			container.Resources.Requests["example.com/gpu"] = resource.MustParse("1")
		}
		if r.in(8) {
			container.Resources.Requests[v1.ResourceEphemeralStorage] = resource.MustParse("20Gi")
		}
	}
	if r.in(8) {
		container.Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.Protocol(r.one("TCP", "UDP")),
			HostIP: r.one("", "10.0.0.1")}}
	}
	pod.Spec.Containers = []v1.Container{container}
	if r.in(8) {
		init := v1.Container{Name: "i", Image: "web:v1"}
		init.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
		if r.in(2) {
			always := v1.ContainerRestartPolicyAlways
			init.RestartPolicy = &always
		}
		pod.Spec.InitContainers = []v1.Container{init}
	}
	affinity := &v1.Affinity{}
	if r.in(4) {
		affinity.PodAffinity = &v1.PodAffinity{}
		if r.in(2) {
			affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{r.term()}
		} else {
			affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{
				{Weight: int32(1 + r.Intn(100)), PodAffinityTerm: r.term()}}
		}
	}
	if r.in(4) {
		affinity.PodAntiAffinity = &v1.PodAntiAffinity{}
		if r.in(2) {
			affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{r.term()}
		} else {
			affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{
				{Weight: int32(1 + r.Intn(100)), PodAffinityTerm: r.term()}}
		}
	}
	if incoming {
		r.placement(pod, affinity)
	}
	if affinity.NodeAffinity != nil || affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil {
		pod.Spec.Affinity = affinity
	}
	return pod
}

func (r maker) placement(pod *v1.Pod, affinity *v1.Affinity) {
	if r.in(4) {
		affinity.NodeAffinity = &v1.NodeAffinity{}
		if r.in(2) {
			affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{r.nodeTerm(), r.nodeTerm()}}
		}
		affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.PreferredSchedulingTerm{
			{Weight: int32(1 + r.Intn(100)), Preference: r.nodeTerm()}, {Weight: 10, Preference: r.nodeTerm()}}
	}
	if r.in(6) {
		pod.Spec.NodeSelector = map[string]string{zone: r.one("z0", "z1")}
	}
	if r.in(3) {
		for n := 0; n <= r.Intn(2); n++ {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, r.spread())
		}
	}
	if r.in(2) {
		toleration := v1.Toleration{Key: r.one("a", "b", ""), Operator: v1.TolerationOperator(r.one("Exists", "Equal", "")),
			Effect: v1.TaintEffect(r.one("", "NoSchedule", "PreferNoSchedule", "NoExecute"))}
		if toleration.Key == "" {
			toleration.Operator = v1.TolerationOpExists
		}
		if toleration.Operator != v1.TolerationOpExists {
			toleration.Value = r.one("x", "5")
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
	}
	if r.in(8) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations,
			v1.Toleration{Key: "node.kubernetes.io/unschedulable", Operator: v1.TolerationOpExists})
	}
}

const driver = "csi.example.com"

// Volumes of a pod: of claims, and disks named in place.
func (r maker) mounts(pod *v1.Pod, claims []*v1.PersistentVolumeClaim) {
	add := func(source v1.VolumeSource) {
		name := "v" + strconv.Itoa(len(pod.Spec.Volumes))
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
	for len(claims) > 0 && r.in(2) && len(pod.Spec.Volumes) < 3 {
		claim := claims[r.Intn(len(claims))].Name
		if r.in(30) {
			claim = "gone"
		}
		add(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
	}
	switch r.Intn(16) {
	case 0:
		add(v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: r.one("d0", "d1"), ReadOnly: r.in(2)}})
	case 1:
		add(v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: r.one("vol-0", "vol-1")}})
	case 2:
		add(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{IQN: r.one("q0", "q1"), ReadOnly: r.in(2)}})
	case 3:
		add(v1.VolumeSource{RBD: &v1.RBDVolumeSource{CephMonitors: []string{r.one("m0", "m1"), "m2"}, RBDPool: "p",
			RBDImage: r.one("i0", "i1"), ReadOnly: r.in(2)}})
	case 4:
		add(v1.VolumeSource{Cinder: &v1.CinderVolumeSource{VolumeID: r.one("c0", "c1")}})
	}
}

func (r maker) storage(f *fact, nodes int) {
	late, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	zoned := []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: zone,
		Values: []string{"z0", "z1"}}}}}
	for _, class := range []storagev1.StorageClass{{Provisioner: driver, VolumeBindingMode: &late},
		{Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late}, {Provisioner: "x", VolumeBindingMode: &now},
		{Provisioner: "x", VolumeBindingMode: &late, AllowedTopologies: zoned}} {
		class.Name = "class" + strconv.Itoa(len(f.Classes))
		f.Classes = append(f.Classes, &class)
	}
	yes := true
	spec := storagev1.CSIDriverSpec{StorageCapacity: &yes}
	if r.in(4) {
		spec.PreventPodSchedulingIfMissing = &yes
	}
	f.CSIDrivers = append(f.CSIDrivers, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: spec})
	for n := 0; n < 3; n++ {
		size := resource.MustParse(r.one("1Gi", "10Gi", "50Gi"))
		f.Capacities = append(f.Capacities, &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: "z" + strconv.Itoa(n)}, StorageClassName: "class0", Capacity: &size,
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{zone: "z" + strconv.Itoa(n)}}})
	}
	for n := 0; n < nodes; n++ {
		if r.in(4) {
			continue
		}
		node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n" + strconv.Itoa(n)}}
		for _, name := range []string{driver, "ebs.csi.aws.com", "cinder.csi.openstack.org"} {
			limit := int32(1 + r.Intn(2))
			node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: name, NodeID: "x",
				Allocatable: &storagev1.VolumeNodeResources{Count: &limit}})
		}
		f.CSINodes = append(f.CSINodes, node)
	}
	for n := 0; n < 6; n++ {
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv" + strconv.Itoa(n), Labels: map[string]string{}}}
		pv.Spec.Capacity = v1.ResourceList{"storage": resource.MustParse(strconv.Itoa(n+1) + "Gi")}
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{"ReadWriteOnce", "ReadWriteOncePod"}
		pv.Spec.StorageClassName = r.one("class0", "class1")
		pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: pv.Name}
		pv.Status.Phase = "Available"
		if r.in(2) {
			pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
				{MatchExpressions: []v1.NodeSelectorRequirement{{Key: zone, Operator: "In", Values: []string{r.one("z0", "z1"), "z2"}}}}}}}
		} else if r.in(2) {
			pv.Labels[zone] = r.one("z0", "z1__z2", "z2")
		}
		f.Volumes = append(f.Volumes, pv)
		if r.in(6) {
			f.Attachments = append(f.Attachments, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va" + pv.Name},
				Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "n" + strconv.Itoa(r.Intn(nodes)),
					Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}}})
		}
	}
	for n := 0; n < 6; n++ {
		class := r.one("class0", "class1", "class3", "class0", "class1", "class2")
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim" + strconv.Itoa(n), Namespace: "default",
			UID: types.UID("claim" + strconv.Itoa(n)), Annotations: map[string]string{}}}
		claim.Spec.StorageClassName = &class
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{"ReadWriteOnce"}
		if r.in(4) {
			claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{"ReadWriteOncePod"}
		}
		claim.Spec.Resources.Requests = v1.ResourceList{"storage": resource.MustParse(r.one("500Mi", "2Gi", "4Gi"))}
		if pv := f.Volumes[n]; r.in(2) {
			claim.Spec.VolumeName = pv.Name
			claim.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
			claim.Spec.StorageClassName = &pv.Spec.StorageClassName
			pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: claim.Name, UID: claim.UID}
			pv.Status.Phase, claim.Status.Phase = "Bound", "Bound"
		} else if class == "class0" && r.in(4) {
			claim.Annotations["volume.kubernetes.io/selected-node"] = "n" + strconv.Itoa(r.Intn(nodes))
		}
		f.Claims = append(f.Claims, claim)
	}
}

func makeCase(r maker) *fact {
	f := &fact{Unfit: map[string]verdict{}, Scores: map[string]map[string]int64{}, Totals: map[string]int64{}}
	for _, name := range []string{"default", "other"} {
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if r.in(2) {
			ns.Labels = map[string]string{"team": r.one("a", "b")}
		}
		f.Namespaces = append(f.Namespaces, ns)
	}
	if r.in(2) {
		f.Services = append(f.Services, &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"},
			Spec: v1.ServiceSpec{Selector: map[string]string{"app": r.one("web", "db")}}})
	}
	nodes := 3 + r.Intn(5)
	for n := 0; n < nodes; n++ {
		f.Nodes = append(f.Nodes, r.node(n))
	}
	for n := 0; n < r.Intn(14); n++ {
		pod := r.pod("p"+strconv.Itoa(n), false)
		pod.Spec.NodeName = "n" + strconv.Itoa(r.Intn(nodes))
		f.Pods = append(f.Pods, pod)
	}
	f.Pod = r.pod("incoming", true)
	// Half of the cases have storage.
	if r.in(2) {
		r.storage(f, nodes)
		f.Pod.Namespace = "default"
		for _, pod := range append(f.Pods, f.Pod) {
			r.mounts(pod, f.Claims)
		}
	}
	for n, pod := range append(f.Pods, f.Pod) {
		pod.UID = types.UID("uid-" + strconv.Itoa(n))
	}
	return f
}

func answer(f *fact) error {
	ctx := context.Background()
	cfg, err := latest.Default()
	if err != nil {
		return err
	}
	profile := cfg.Profiles[0]
	profile.Plugins = &config.Plugins{QueueSort: config.PluginSet{Enabled: []config.Plugin{{Name: "PrioritySort"}}},
		Bind: config.PluginSet{Enabled: []config.Plugin{{Name: "DefaultBinder"}}}}
	for _, name := range asked {
		weight := weights[name]
		if weight == 0 {
			weight = 1
		}
		profile.Plugins.MultiPoint.Enabled = append(profile.Plugins.MultiPoint.Enabled, config.Plugin{Name: name, Weight: weight})
	}
	var objects []runtime.Object
	for _, ns := range f.Namespaces {
		objects = append(objects, ns)
	}
	for _, s := range f.Services {
		objects = append(objects, s)
	}
	for _, o := range f.Claims {
		objects = append(objects, o)
	}
	for _, o := range f.Volumes {
		objects = append(objects, o)
	}
	for _, o := range f.Classes {
		objects = append(objects, o)
	}
	for _, o := range f.CSINodes {
		objects = append(objects, o)
	}
	for _, o := range f.CSIDrivers {
		objects = append(objects, o)
	}
	for _, o := range f.Capacities {
		objects = append(objects, o)
	}
	for _, o := range f.Attachments {
		objects = append(objects, o)
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	snapshot := cache.NewSnapshot(f.Pods, f.Nodes)
	fw, err := frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), &profile,
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(snapshot))
	if err != nil {
		return err
	}
	factory.Core().V1().Namespaces().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	state := framework.NewCycleState()
	limited, status, _ := fw.RunPreFilterPlugins(ctx, state, f.Pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			return status.AsError()
		}
		f.Rejected = status.Reasons()
		return nil
	}
	var feasible []fwk.NodeInfo
	for _, node := range f.Nodes {
		info, err := snapshot.NodeInfos().Get(node.Name)
		if err != nil {
			return err
		}
		if !limited.AllNodes() && !limited.NodeNames.Has(node.Name) {
			continue
		}
		if status := fw.RunFilterPlugins(ctx, state, f.Pod, info); !status.IsSuccess() {
			f.Unfit[node.Name] = verdict{status.Plugin(), status.Code().String(), status.Reasons()}
			continue
		}
		feasible = append(feasible, info)
	}
	if len(feasible) == 0 {
		return nil
	}
	if status := fw.RunPreScorePlugins(ctx, state, f.Pod, feasible); !status.IsSuccess() {
		return status.AsError()
	}
	scores, status := fw.RunScorePlugins(ctx, state, f.Pod, feasible)
	if !status.IsSuccess() {
		return status.AsError()
	}
	for _, node := range scores {
		f.Totals[node.Name] = node.TotalScore
		for _, score := range node.Scores {
			if f.Scores[score.Name] == nil {
				f.Scores[score.Name] = map[string]int64{}
			}
			f.Scores[score.Name][node.Name] = score.Score
		}
	}
	return nil
}

func main() {
	metrics.Register()
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	out := json.NewEncoder(os.Stdout)
	for seed := 0; seed < count; seed++ {
		f := makeCase(maker{rand.New(rand.NewSource(int64(seed)))})
		if err := answer(f); err != nil {
			fmt.Fprintln(os.Stderr, seed, err)
			continue
		}
		if err := out.Encode(f); err != nil {
			panic(err)
		}
	}
}
